import { readLayers } from "./onegru.js";

const RATE = 16000;
const file = await (await fetch("denoiser.safetensors")).arrayBuffer();

async function connect(context, samples) {
  await context.audioWorklet.addModule("denoiser.js");
  const buffer = new AudioBuffer({ length: samples.length, sampleRate: RATE });
  buffer.copyToChannel(samples, 0);
  const source = new AudioBufferSourceNode(context, { buffer });
  const node = new AudioWorkletNode(context, "denoiser", { processorOptions: { file }, outputChannelCount: [1] });
  source.connect(node).connect(context.destination);
  source.start();
  return { source, node };
}

// What the audio thread makes of samples.
export async function denoise(samples) {
  const context = new OfflineAudioContext({ length: samples.length, sampleRate: RATE });
  await connect(context, samples);
  return (await context.startRendering()).getChannelData(0);
}
window.denoise = denoise; // for tests

function noisyTone(seconds) {
  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  return Float32Array.from({ length: seconds * RATE }, (_, i) => 0.5 * Math.sin(0.05 * i) + 0.2 * normal());
}

function draw(name, samples) {
  const canvas = document.getElementById(name), pen = canvas.getContext("2d");
  [canvas.width, canvas.height] = [canvas.clientWidth * devicePixelRatio, canvas.clientHeight * devicePixelRatio];
  pen.strokeStyle = getComputedStyle(canvas).color;
  const shown = samples.subarray(0, 1600);
  shown.forEach((y, i) => pen.lineTo(i / shown.length * canvas.width, (0.5 - 0.45 * y) * canvas.height));
  pen.stroke();
}

const noisy = noisyTone(1), clean = await denoise(noisy);
draw("noisy", noisy);
draw("clean", clean);
const streams = readLayers(file, { weight_storage: "int8" }).map((layer) => layer.stream()), frame = noisy.subarray(0, 16);
const began = performance.now(), frames = 5000;
for (let i = 0; i < frames; ++i) streams.reduce((heard, stream) => stream.step(heard), frame);
const micro = 1000 * (performance.now() - began) / frames;
document.getElementById("facts").textContent = `A frame of 16 samples takes ${micro.toFixed(1)} µs of the ${1e6 * 16 / RATE} µs that it lasts.`;

let playing = null;
document.getElementById("listen").onclick = async ({ target }) => {
  if (playing !== null) {
    await playing.context.close();
    playing = null;
  } else {
    const context = new AudioContext({ sampleRate: RATE });
    playing = { context, ...(await connect(context, noisyTone(10))) };
    playing.source.loop = true;
    playing.node.port.postMessage(document.getElementById("denoise").checked);
  }
  target.textContent = playing === null ? "Listen" : "Stop";
};
document.getElementById("denoise").onchange = ({ target }) => playing?.node.port.postMessage(target.checked);
window.ready = true;
