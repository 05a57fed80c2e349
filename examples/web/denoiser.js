// The processor that runs in the audio thread: blocks of 128 samples, as frames through streams.

import { readLayers } from "./onegru.js";

registerProcessor("denoiser", class extends AudioWorkletProcessor {
  constructor({ processorOptions: { file } }) {
    super();
    this.streams = readLayers(file, { weight_storage: "int8" }).map((layer) => layer.stream());
    this.frame = new Float32Array(16);
    this.on = true;
    this.port.onmessage = ({ data }) => { this.on = data; };
  }

  process([[input]], [[output]]) {
    if (input === undefined) return true; // nothing is connected
    for (let begin = 0; begin < output.length; begin += this.frame.length) {
      for (let i = 0; i < this.frame.length; ++i) this.frame[i] = input[begin + i];
      let heard = this.frame;
      for (const stream of this.streams) heard = stream.step(heard);
      for (let i = 0; i < this.frame.length; ++i) output[begin + i] = this.on ? heard[i] : input[begin + i];
    }
    return true;
  }
});
