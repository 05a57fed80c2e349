// The JavaScript API of onegru, for browsers, AudioWorklets and Node: the functions of onegru.h for float32 and int8
// layers. Results have the same bits as those of builds without fused multiply-add. See onegru.d.ts.

const BINARIES = { simd: "{{simd}}", scalar: "{{scalar}}" }; // WebAssembly modules; each character is a byte
const OK = 0;
// table: javascript_functions
const ACTIVATIONS = [
  "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid",
  "Elu", "Softsign", "Softplus",
];
// end
// table: javascript_types
const FLOAT32 = 2, INT8 = 4;
const DIRECTIONS = ["forward", "reverse", "bidirectional"], ATTENTIONS = [null, "openvino", "dien"];
// end
const NAMES = { direction: DIRECTIONS, attention: ATTENTIONS, activations: ACTIVATIONS };
const AS_STORED = -1, ALL_ROWS = 0xffffffff, MAX_LAYERS = 256;
// onegru_spec has twelve words, the last two for clip, then four activations, then two words.
const SPEC_BYTES = 48 + 4 * 24 + 8, OPTIONS_BYTES = 24, CALL_BYTES = 40;

export class OnegruError extends Error {
  get name() { return "OnegruError"; }
}

function fail(name, problem) { throw new OnegruError(`${name}: ${problem}`); }

// Returns make(). Engines throw a RangeError if there is not enough memory.
function allocated(make) {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new OnegruError(`out of memory: ${error.message}`, { cause: error });
  }
}
function numbers(count) { return allocated(() => new Float32Array(count)); }

let compiled = null;

// Returns the module, with SIMD if the engine supports it. It is compiled at the first use.
function module() {
  if (compiled === null) {
    const bytes = (text) => Uint8Array.from(text, (character) => character.charCodeAt(0));
    const simd = bytes(BINARIES.simd);
    compiled = new WebAssembly.Module(WebAssembly.validate(simd) ? simd : bytes(BINARIES.scalar));
  }
  return compiled;
}

// The memory size from which an instance that has thrown gets no new layers. C++ frees no memory of a call that ends
// by a JavaScript exception.
const LARGE = 2 ** 26;
let shared = null;

// Returns the instance for new layers and their streams. They share it, because a page can have only about 120.
function instance() {
  if (shared === null || (shared.hasThrown && shared.buffer.byteLength > LARGE)) shared = new Instance();
  return shared;
}

class Instance {
  constructor() {
    this.hasThrown = false;
    const nothing = () => 52; // there is no operating system, and the result is ignored
    const wasi = Object.fromEntries(
      WebAssembly.Module.imports(module()).map(({ name }) => [name, nothing]));
    const words = (text) => text === "std::bad_alloc" ? "out of memory" : text;
    const thrown = { fail: (message) => {
      this.hasThrown = true;
      throw new OnegruError(words(this.text(message)));
    } };
    const imports = { wasi_snapshot_preview1: wasi, onegru: thrown };
    this.functions = allocated(() => new WebAssembly.Instance(module(), imports)).exports;
    this.functions._initialize();
  }
  get buffer() { return this.functions.memory.buffer; }

  text(at) {
    const bytes = new Uint8Array(this.buffer, at >>> 0); // JavaScript reads the 32-bit address as signed
    const codes = Array.from(bytes.subarray(0, bytes.indexOf(0)), (byte) => `%${byte.toString(16).padStart(2, "0")}`);
    return decodeURIComponent(codes.join("")); // an AudioWorklet has no TextDecoder
  }

  call(name, ...parameters) {
    const stack = this.functions.__stack_pointer, before = stack.value;
    try {
      if (this.functions[name](...parameters) !== OK) throw new OnegruError(this.text(this.functions.onegru_error_message()));
    } finally {
      stack.value = before;
    }
  }

  // Allocates bytes, which the caller frees.
  allocate(bytes) {
    // The C library reads 2^31 and more as negative.
    const at = bytes < 2 ** 31 ? this.functions.malloc(Math.max(bytes, 1)) >>> 0 : 0;
    if (at === 0) throw new OnegruError("out of memory");
    return at;
  }

  // Copies the arrays to memory, calls use(...addresses), with 0 for null, and frees the memory.
  lend(arrays, use) {
    const addresses = [];
    try {
      for (const array of arrays) {
        addresses.push(array === null ? 0 : this.allocate(array.byteLength));
        if (array !== null) this.copy(addresses.at(-1), array);
      }
      return use(...addresses);
    } finally {
      addresses.forEach((address) => this.functions.free(address));
    }
  }
  copy(at, array) { new Uint8Array(this.buffer, at, array.byteLength).set(bytesOf(array)); }
  word(at) { return new DataView(this.buffer).getUint32(at, true); }
}

function bytesOf(array) { return new Uint8Array(array.buffer, array.byteOffset, array.byteLength); }

function checked(name, array, type, count) {
  // Arrays of another frame have another class of the same name.
  if (Object.prototype.toString.call(array) !== `[object ${type.name}]`) fail(name, `must be a ${type.name}`);
  if (count !== null && array.length !== count) fail(name, `${array.length} numbers; must be ${count}`);
  return array;
}
function optional(name, array, type, count) {
  return array === undefined || array === null ? null : checked(name, array, type, count);
}
function whole(name, number, least, most = 2 ** 31 - 1) {
  if (!Number.isInteger(number) || number < least || number > most) fail(name, `${number}; must be an integer of ${least}…${most}`);
  return number;
}
// Returns the product of sizes, which must fit in an array.
function product(...sizes) {
  const count = sizes.reduce((a, b) => a * b, 1);
  return count < 2 ** 29 ? count : fail("sizes", `${count} numbers; must be below 2^29`);
}
function number(name, value) { return typeof value === "number" ? value : fail(name, `${value}; must be a number`); }
function placeIn(name, words, word) {
  const place = words.indexOf(word);
  return place >= 0 ? place : fail(name, `${word}; must be one of ${words.filter((known) => known !== null).join(", ")}`);
}

// Returns the words of onegru_storage.
function storageWords({ weight_storage = "float32", activation_bits, group = 0 }) {
  const is_int8 = weight_storage === "int8", bits = activation_bits ?? (is_int8 ? 16 : 0);
  if (!is_int8 && weight_storage !== "float32") fail("weight_storage", `${weight_storage}; must be float32 or int8, because onegru.js has no other kernels`);
  return [is_int8 ? INT8 : FLOAT32, whole("activation_bits", bits, 0, 16), whole("group", group, 0)];
}

function flag(name, value) { return whole(name, Number(value), 0, 1); }

// Returns the words of onegru_options.
function optionsWords(options) {
  const { weight_storage, activation_bits, group, flush_subnormals } = options;
  const is_stored = [weight_storage, activation_bits, group].every((value) => value === undefined);
  return [OPTIONS_BYTES, ...(is_stored ? [AS_STORED, 0, 0] : storageWords(options)),
    flush_subnormals === undefined ? AS_STORED : flag("flush_subnormals", flush_subnormals), 0];
}

function specBytes(spec) {
  const direction = placeIn("direction", NAMES.direction, spec.direction ?? "forward");
  const D = direction === 2 ? 2 : 1, view = new DataView(new ArrayBuffer(SPEC_BYTES));
  const words = [SPEC_BYTES, whole("input_size", spec.input_size, 0), whole("hidden_size", spec.hidden_size, 1), FLOAT32, direction,
    flag("linear_before_reset", spec.linear_before_reset ?? 0),
    placeIn("attention", NAMES.attention, spec.attention ?? null), ...storageWords(spec)];
  words.forEach((word, index) => view.setInt32(4 * index, word, true));
  view.setFloat64(40, number("clip", spec.clip ?? Infinity), true);
  view.setInt32(144, flag("flush_subnormals", spec.flush_subnormals ?? false), true);
  const functions = spec.activations ?? Array(D).fill(["Sigmoid", "Tanh"]).flat();
  if (functions.length !== 2 * D) fail("activations", `${functions.length} functions; must be ${2 * D}`);
  functions.forEach((given, index) => {
    const { name, alpha = NaN, beta = NaN } = typeof given === "string" ? { name: given } : given;
    view.setInt32(48 + 24 * index, placeIn("activations", NAMES.activations, name), true);
    view.setFloat64(56 + 24 * index, number("alpha", alpha), true);
    view.setFloat64(64 + 24 * index, number("beta", beta), true);
  });
  return new Uint8Array(view.buffer);
}

// Creates at most `most` layers. use(address of the layers, address of their count, addresses of the arrays) returns
// the call that creates them.
function make(most, arrays, use) {
  const made = instance();
  return made.lend([new Uint32Array(most), Uint32Array.of(1), ...arrays], (layers, count, ...addresses) => {
    made.call(...use(layers, count, ...addresses));
    return Array.from({ length: made.word(count) }, (_, index) => new Layer(made, made.word(layers + 4 * index)));
  });
}

export function createLayer(spec = {}, { W, R, B } = {}) {
  const given = specBytes(spec), I = spec.input_size, H = spec.hidden_size, D = spec.direction === "bidirectional" ? 2 : 1;
  const arrays = [checked("W", W, Float32Array, product(D, 3, H, I)), checked("R", R, Float32Array, product(D, 3, H, H)),
    optional("B", B, Float32Array, product(D, 6, H))];
  return make(1, [given, ...arrays], (made, _, ...addresses) => ["onegru_layer_create", ...addresses, made])[0];
}

// Returns the bytes of a file, and the words of its options.
function fileArrays(file, options) {
  const is_buffer = Object.prototype.toString.call(file) === "[object ArrayBuffer]";
  const bytes = is_buffer ? new Uint8Array(file) : checked("file", file, Uint8Array, null);
  return [bytes, options === null ? null : Int32Array.from(optionsWords(options))];
}

export function readLayer(file, index = 0, options = null) {
  const arrays = fileArrays(file, options), size = arrays[0].length;
  whole("index", index, 0);
  return make(1, arrays, (made, _, at, given) => ["onegru_layer_read", at, size, index, given, made])[0];
}

export function readLayers(file, options = null) {
  const arrays = fileArrays(file, options), size = arrays[0].length;
  return make(MAX_LAYERS, arrays, (made, count, at, given) => ["onegru_layers_read", at, size, given, MAX_LAYERS, made, count]);
}

// Frees the memory of layers and streams that are no longer referenced.
const dropped = new FinalizationRegistry((free) => free());

// A GRU layer, from createLayer, readLayer or readLayers.
export class Layer {
  #instance;
  #handle;
  #free;

  constructor(instance, handle) {
    if (!(instance instanceof Instance)) fail("Layer", "cannot be constructed; call createLayer, readLayer or readLayers");
    this.#instance = instance;
    this.#handle = handle;
    this.#free = () => instance.functions.onegru_layer_destroy(handle);
    dropped.register(this, this.#free, this);
    const spec = instance.lend([Uint32Array.of(SPEC_BYTES, ...Array(SPEC_BYTES / 4 - 1).fill(0))], (at) => {
      instance.call("onegru_layer_spec", handle, at);
      return new DataView(instance.buffer.slice(at, at + SPEC_BYTES));
    });
    const word = (index) => spec.getInt32(4 * index, true), clip = spec.getFloat64(40, true), D = word(4) === 2 ? 2 : 1;
    this.spec = Object.freeze({
      input_size: word(1), hidden_size: word(2), direction: NAMES.direction[word(4)], linear_before_reset: word(5),
      attention: NAMES.attention[word(6)], weight_storage: word(7) === INT8 ? "int8" : "float32", activation_bits: word(8),
      group: word(9), clip: clip === Infinity ? null : clip,
      activations: Array.from({ length: 2 * D }, (_, i) => ({ name: NAMES.activations[word(12 + 6 * i)],
        alpha: spec.getFloat64(56 + 24 * i, true), beta: spec.getFloat64(64 + 24 * i, true) })),
      flush_subnormals: word(36) === 1,
    });
  }

  destroy() {
    if (this.#handle === 0) return;
    dropped.unregister(this);
    this.#free();
    this.#handle = 0; // every function rejects 0
  }

  #call(name, ...parameters) {
    if (this.#handle === 0) fail("layer", "was destroyed");
    this.#instance.call(name, this.#handle, ...parameters);
  }

  run(X, { T, B = 1, layout = 0, sequence_lens, initial_h, attention } = {}) {
    const { input_size: I, hidden_size: H, direction, attention: attends } = this.spec, D = direction === "bidirectional" ? 2 : 1;
    whole("T", T, 0);
    whole("B", B, 0);
    if (attends === null && (attention ?? null) !== null) fail("attention", "the layer has none");
    const inputs = [checked("X", X, Float32Array, product(T, B, I)), optional("sequence_lens", sequence_lens, Int32Array, B),
      optional("initial_h", initial_h, Float32Array, D * B * H),
      attends === null ? null : checked("attention", attention, Float32Array, T * B)];
    const Y = numbers(product(T, D, B, H)), Y_h = numbers(product(D, B, H));
    this.#instance.lend([...inputs, Y, Y_h], (...addresses) => {
      const call = Uint32Array.of(CALL_BYTES, whole("layout", layout, 0, 1), T, B, ...addresses);
      this.#instance.lend([call], (at) => this.#call("onegru_layer_run", at));
      for (const [array, at] of [[Y, addresses[4]], [Y_h, addresses[5]]]) {
        array.set(new Float32Array(this.#instance.buffer, at, array.length));
      }
    });
    return { Y, Y_h };
  }

  stream(rows = 1) {
    whole("rows", rows, 1);
    const handle = this.#instance.lend([new Uint32Array(1)], (made) => {
      this.#call("onegru_stream_create", rows, made);
      return this.#instance.word(made);
    });
    return new Stream(this.#instance, handle, this.spec, rows);
  }
}

// A stream, from Layer.stream. It has memory for X, attention, Y and h, so that steps allocate nothing.
export class Stream {
  #instance;
  #handle;
  #places;
  #free;
  #views = null;

  constructor(instance, handle, spec, rows) {
    if (!(instance instanceof Instance)) fail("Stream", "cannot be constructed; call Layer.stream");
    this.#instance = instance;
    this.#handle = handle;
    const counts = { X: rows * spec.input_size, attention: spec.attention === null ? 0 : rows, Y: rows * spec.hidden_size,
      h: rows * spec.hidden_size };
    let at;
    try {
      at = instance.allocate(4 * Object.values(counts).reduce((a, b) => a + b));
    } catch (error) {
      instance.functions.onegru_stream_destroy(handle);
      throw error;
    }
    const memory = at;
    this.#places = Object.entries(counts).map(([name, count]) => {
      const place = { name, count, at };
      at += 4 * count;
      return place;
    });
    this.rows = rows;
    this.#free = () => {
      instance.functions.onegru_stream_destroy(handle);
      instance.functions.free(memory);
    };
    dropped.register(this, this.#free, this);
  }

  destroy() {
    if (this.#handle === 0) return;
    dropped.unregister(this);
    this.#free();
    this.#handle = 0; // every function rejects 0
    this.#places = this.#places.map((place) => ({ ...place, at: 0 }));
    this.#views = null;
  }

  // The memory of X [rows, I], attention [rows], Y and h [rows, H]. It can move when other streams are created.
  get #memory() {
    if (this.#handle === 0) fail("stream", "was destroyed");
    if (this.#views === null || this.#views.X.buffer !== this.#instance.buffer) {
      this.#views = Object.fromEntries(
        this.#places.map(({ name, count, at }) => [name, new Float32Array(this.#instance.buffer, at, count)]));
    }
    return this.#views;
  }

  step(X, attention) {
    const memory = this.#memory, [x, scores, y] = this.#places;
    memory.X.set(checked("X", X, Float32Array, x.count));
    if (scores.count !== 0) memory.attention.set(checked("attention", attention, Float32Array, scores.count));
    else if ((attention ?? null) !== null) fail("attention", "the layer has none");
    this.#instance.call("onegru_stream_step", this.#handle, x.at, scores.count === 0 ? 0 : scores.at, y.at);
    return memory.Y;
  }

  get state() {
    const { h } = this.#memory;
    this.#instance.call("onegru_stream_get_state", this.#handle, this.#places[3].at);
    return allocated(() => h.slice());
  }
  set state(h) {
    this.#memory.h.set(checked("h", h, Float32Array, this.#places[3].count));
    this.#instance.call("onegru_stream_set_state", this.#handle, this.#places[3].at);
  }
  reset(row = null) {
    this.#instance.call("onegru_stream_reset", this.#handle, row === null ? ALL_ROWS : whole("row", row, 0, this.rows - 1));
  }
}
