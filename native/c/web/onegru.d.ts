/** GRU layers and streams of float32 and int8, as WebAssembly: the functions of onegru.h. Arrays are flat, in the shapes
 * given here, the last axis the fastest: T steps, B rows, I input_size, H hidden_size, D directions. What is not valid
 * throws an OnegruError, which names the argument. */

// table: typescript_functions
export type ActivationName =
  | "Relu" | "Tanh" | "Sigmoid" | "Affine" | "LeakyRelu" | "ThresholdedRelu" | "ScaledTanh" |
  "HardSigmoid" | "Elu" | "Softsign" | "Softplus";
// end

/** How W and R are kept. */
export interface Storage {
  /** Default "float32". onegru.js has no kernels for 16-bit weights or activations. */
  weight_storage?: "float32" | "int8";
  /** Of inputs of products with int8: 16, the default, or 8; of float32: 0. */
  activation_bits?: number;
  /** How many int8 share a scale, a multiple of 4; 0, the default, for all of a row. */
  group?: number;
}

/** What a layer of a file gets instead of what the file says. Without weight_storage it keeps what the file has. */
export interface Options extends Storage {
  /** Whether states below 2^-100 become 0: subnormal states would make steps slow. Default false. */
  flush_subnormals?: boolean;
}

export interface Spec extends Options {
  input_size: number;
  hidden_size: number;
  /** Default "forward". */
  direction?: "forward" | "reverse" | "bidirectional";
  /** Default 0. */
  linear_before_reset?: 0 | 1;
  /** What a step does with a score a: z = (1 - a)·z, or z = 1 - a·(1 - z). Default none. */
  attention?: "openvino" | "dien" | null;
  /** > 0; default none. */
  clip?: number | null;
  /** f and g of each direction; default Sigmoid and Tanh. alpha, beta: default those of ONNX. */
  activations?: (ActivationName | { name: ActivationName; alpha?: number; beta?: number })[];
}

export class OnegruError extends Error {}

/** W [D, 3H, I], R [D, 3H, H], in gate order z, r, h; B [D, 6H], default zeros. */
export function createLayer(spec: Spec, weights: { W: Float32Array; R: Float32Array; B?: Float32Array | null }): Layer;

/** A layer of a .safetensors file of onegru.save_layers; options: default what the file has. */
export function readLayer(file: ArrayBuffer | Uint8Array, index?: number, options?: Options | null): Layer;
/** All of them, the lowest first. */
export function readLayers(file: ArrayBuffer | Uint8Array, options?: Options | null): Layer[];

export class Layer {
  private constructor();
  readonly spec: Readonly<Required<Spec>>;
  /** X [T, B, I], initial_h [D, B, H], attention [T, B], Y [T, D, B, H], Y_h [D, B, H]; under layout 1, batch first: X
   * [B, T, I], initial_h and Y_h [B, D, H], attention [B, T], Y [B, T, D, H]. sequence_lens [B], each 0…T. */
  run(X: Float32Array, sizes: {
    T: number; B?: number; layout?: 0 | 1; sequence_lens?: Int32Array | null; initial_h?: Float32Array | null;
    attention?: Float32Array | null;
  }): { Y: Float32Array; Y_h: Float32Array };
  /** Of a layer that runs forward; from zeros on. It outlives the layer. */
  stream(rows?: number): Stream;
  /** Frees its memory now, not when nobody has it any more. */
  destroy(): void;
}

export class Stream {
  private constructor();
  readonly rows: number;
  /** One step: X [rows, I], attention [rows]. Returns Y [rows, H], in memory that the next step writes to: use it, or
   * copy it, before anything else is called. */
  step(X: Float32Array, attention?: Float32Array | null): Float32Array;
  /** [rows, H]. */
  state: Float32Array;
  /** Zeros again: of a row, or of all. */
  reset(row?: number | null): void;
  /** Frees its memory now, not when nobody has it any more. */
  destroy(): void;
}
