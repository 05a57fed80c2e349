/** GRU layers and streams for float32 and int8, as WebAssembly. Arrays are flat and in row-major order. Shapes use T
 * (steps), B (batch size), I (input_size), H (hidden_size) and D (directions). An invalid argument throws an
 * OnegruError that names it. */

// table: typescript_functions
export type ActivationName =
  | "Relu" | "Tanh" | "Sigmoid" | "Affine" | "LeakyRelu" | "ThresholdedRelu" | "ScaledTanh" |
  "HardSigmoid" | "Elu" | "Softsign" | "Softplus";
// end

/** How W and R are stored. */
export interface Storage {
  /** Default: "float32". onegru.js has no kernels for 16-bit weights or activations. */
  weight_storage?: "float32" | "int8";
  /** The bits of X and h in products. int8: 16 (default) or 8; float32: 0. */
  activation_bits?: number;
  /** int8: the number of weights that share a scale, a multiple of 4. Default: 0 (a whole row). */
  group?: number;
}

/** Options that replace those of a file. Without weight_storage, the layer keeps the storage of the file. */
export interface Options extends Storage {
  /** Whether states below 2^-100 become 0, because subnormal states make steps slow. Default: false. */
  flush_subnormals?: boolean;
}

export interface Spec extends Options {
  input_size: number;
  hidden_size: number;
  /** Default: "forward". */
  direction?: "forward" | "reverse" | "bidirectional";
  /** Default: 0. */
  linear_before_reset?: 0 | 1;
  /** How a score a changes z: "openvino": (1 - a)·z; "dien": 1 - a·(1 - z). Default: null (no attention). */
  attention?: "openvino" | "dien" | null;
  /** The largest absolute input of f and g, > 0. Default: null (no clipping). */
  clip?: number | null;
  /** f and g of each direction. Default: Sigmoid and Tanh; ONNX's defaults for alpha and beta. */
  activations?: (ActivationName | { name: ActivationName; alpha?: number; beta?: number })[];
}

export class OnegruError extends Error {}

/** Creates a layer from W [D, 3H, I], R [D, 3H, H] and B [D, 6H] (default: zeros), with gates in the order z, r, h. */
export function createLayer(spec: Spec, weights: { W: Float32Array; R: Float32Array; B?: Float32Array | null }): Layer;

/** Reads a layer of a .safetensors file from onegru.save_layers. Defaults: index 0, the options of the file. */
export function readLayer(file: ArrayBuffer | Uint8Array, index?: number, options?: Options | null): Layer;
/** Reads all layers of a file, the lowest first. */
export function readLayers(file: ArrayBuffer | Uint8Array, options?: Options | null): Layer[];

export class Layer {
  private constructor();
  readonly spec: Readonly<Required<Spec>>;
  /** Runs the layer. X [T, B, I], initial_h [D, B, H], attention [T, B], Y [T, D, B, H], Y_h [D, B, H]. With layout 1,
   * the batch comes first: X [B, T, I], initial_h and Y_h [B, D, H], attention [B, T], Y [B, T, D, H].
   * sequence_lens: [B], each 0…T. */
  run(X: Float32Array, sizes: {
    T: number; B?: number; layout?: 0 | 1; sequence_lens?: Int32Array | null; initial_h?: Float32Array | null;
    attention?: Float32Array | null;
  }): { Y: Float32Array; Y_h: Float32Array };
  /** Creates a stream of a forward layer, with states of zeros. It remains valid after the layer is destroyed. */
  stream(rows?: number): Stream;
  /** Frees the memory now, instead of when the object is garbage-collected. */
  destroy(): void;
}

export class Stream {
  private constructor();
  readonly rows: number;
  /** Runs one step: X [rows, I], attention [rows]. Returns Y [rows, H], in memory that later calls change, so use it or
   * copy it first. */
  step(X: Float32Array, attention?: Float32Array | null): Float32Array;
  /** The states [rows, H]; a copy. */
  state: Float32Array;
  /** Sets the state of a row to zeros. Default: null (all rows). */
  reset(row?: number | null): void;
  /** Frees the memory now, instead of when the object is garbage-collected. */
  destroy(): void;
}
