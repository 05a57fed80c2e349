/* The C API of onegru: GRU layers and streams, with the same bits as the Python package.
 *
 *   z = f(clip(x·Wzᵀ + h·Rzᵀ + Wbz + Rbz))
 *   r = f(clip(x·Wrᵀ + h·Rrᵀ + Wbr + Rbr))
 *   n = g(clip(x·Whᵀ + (r∘h)·Rhᵀ + Wbh + Rbh))     linear_before_reset = 0
 *   n = g(clip(x·Whᵀ + r∘(h·Rhᵀ + Rbh) + Wbh))     linear_before_reset = 1
 *   h = (1 - z)∘n + z∘h
 *
 * Shapes use T (steps), B (batch size), I (input_size), H (hidden_size) and D (directions). Arrays are contiguous in
 * row-major order, and their elements are aligned. The names are those of ONNX's GRU-22.
 *
 * A function that can fail returns an onegru_status. If it is not ONEGRU_OK, onegru_error_message() says why, and the
 * call has changed nothing. Layers do not change, so threads can share them. Only one thread at a time may use a
 * stream. Do not use a layer or a stream after you have destroyed it. */

#ifndef ONEGRU_H_
#define ONEGRU_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__cplusplus)
extern "C" {
#endif

#if defined(_WIN32) && defined(ONEGRU_BUILDING)
#define ONEGRU_API __declspec(dllexport)
#elif defined(_WIN32) && defined(ONEGRU_SHARED)
#define ONEGRU_API __declspec(dllimport)
#elif defined(_WIN32)
#define ONEGRU_API
#elif defined(ONEGRU_HIDDEN) /* the static library */
#define ONEGRU_API __attribute__((visibility("hidden")))
#else
#define ONEGRU_API __attribute__((visibility("default")))
#endif

/* The version of this header. A program runs with each library of the same major version that has the functions that
 * it calls, whether the library is older or newer than the header. */
#define ONEGRU_VERSION_MAJOR 0
#define ONEGRU_VERSION_MINOR 1

typedef enum onegru_status {
  ONEGRU_OK = 0,
  ONEGRU_INVALID_ARGUMENT = 1, /* the message names the argument */
  ONEGRU_OUT_OF_MEMORY = 2,
  ONEGRU_CANNOT_READ = 3,   /* the message has the path and the system's reason */
  ONEGRU_BAD_FILE = 4,      /* the file is broken, or onegru did not write it */
  ONEGRU_NO_SUCH_LAYER = 5, /* the file has fewer layers */
  ONEGRU_UNSUPPORTED = 6,   /* this build, CPU or version cannot do it */
  ONEGRU_INTERNAL = 7       /* a bug in onegru */
} onegru_status;

/* table: c_types */
typedef enum onegru_dtype {
  ONEGRU_FLOAT16 = 0,
  ONEGRU_BFLOAT16 = 1,
  ONEGRU_FLOAT32 = 2,
  ONEGRU_FLOAT64 = 3,
  ONEGRU_INT8 = 4 /* only for weight_storage */
} onegru_dtype;

typedef enum onegru_direction { ONEGRU_FORWARD = 0, ONEGRU_REVERSE = 1, ONEGRU_BIDIRECTIONAL = 2 } onegru_direction;

/* How an attention score a changes the update gate z. */
typedef enum onegru_attention {
  ONEGRU_NO_ATTENTION = 0,
  ONEGRU_ATTENTION_OPENVINO = 1, /* z = (1 - a)·z, as in OpenVINO's AUGRUCell */
  ONEGRU_ATTENTION_DIEN = 2      /* z = 1 - a·(1 - z), as in the paper on DIEN */
} onegru_attention;
/* end */

/* table: c_functions */
typedef enum onegru_function {
  ONEGRU_RELU = 0,
  ONEGRU_TANH = 1,
  ONEGRU_SIGMOID = 2,
  ONEGRU_AFFINE = 3,
  ONEGRU_LEAKY_RELU = 4,
  ONEGRU_THRESHOLDED_RELU = 5,
  ONEGRU_SCALED_TANH = 6,
  ONEGRU_HARD_SIGMOID = 7,
  ONEGRU_ELU = 8,
  ONEGRU_SOFTSIGN = 9,
  ONEGRU_SOFTPLUS = 10
} onegru_function;
/* end */

/* alpha and beta are rounded to float32. NaN means ONNX's default. Functions without parameters ignore them. */
typedef struct onegru_activation {
  int32_t function; /* an onegru_function */
  int32_t reserved; /* 0 */
  double alpha;
  double beta;
} onegru_activation;

/* The type in which a layer stores W and R. Only float32 layers can store them in another type. */
typedef struct onegru_storage {
  int32_t weight_storage;  /* an onegru_dtype */
  int32_t activation_bits; /* of X and h in products: int8: 16 or 8; bfloat16: 16 or 0 (float32); otherwise 0 */
  uint32_t group;          /* int8: weights that share a scale, a multiple of 4, or 0 for a whole row; otherwise 0 */
} onegru_storage;

/* The structures below begin with their size, which onegru_..._init sets. Later versions append fields. A field that
 * your header does not have counts as 0. If the library does not know a field, the field must be 0, or the call
 * returns ONEGRU_UNSUPPORTED. onegru_activation and onegru_storage never change. */

/* The specification of a layer. */
typedef struct onegru_spec {
  uint32_t size;
  uint32_t input_size;
  uint32_t hidden_size;
  int32_t dtype;     /* of X, h and Y */
  int32_t direction; /* an onegru_direction */
  int32_t linear_before_reset;
  int32_t attention; /* an onegru_attention */
  onegru_storage storage;
  double clip;                      /* > 0, rounded to float32; infinity: no clipping */
  onegru_activation activations[4]; /* f and g of the first direction, then of the second */
  int32_t flush_subnormals;         /* 1: states below 2^-100 (float64: 2^-1000) become 0; otherwise 0 */
  int32_t reserved;                 /* 0 */
} onegru_spec;

/* Options that replace those of a file. */
typedef struct onegru_options {
  uint32_t size;
  onegru_storage storage;   /* weight_storage ONEGRU_AS_STORED: the file's type, and 16 activation_bits with int8 */
  int32_t flush_subnormals; /* as in onegru_spec, or ONEGRU_AS_STORED for the file's value */
  int32_t reserved;         /* 0 */
} onegru_options;
#define ONEGRU_AS_STORED (-1)

typedef struct onegru_layer onegru_layer;
typedef struct onegru_stream onegru_stream;

/* The arrays of one call of a layer; null for those that you omit. Outputs must not overlap other arrays, but Y_h can
 * be initial_h. */
typedef struct onegru_call {
  uint32_t size;
  int32_t layout; /* 0, or 1: batch first */
  size_t T;
  size_t B;
  const void* X;                /* [T, B, I]; layout 1: [B, T, I] */
  const int32_t* sequence_lens; /* [B], each 0…T; null: T for each row */
  const void* initial_h;        /* [D, B, H]; layout 1: [B, D, H]; null: zeros */
  const void* attention;        /* [T, B]; layout 1: [B, T]; required with attention, otherwise null */
  void* Y;                      /* [T, D, B, H]; layout 1: [B, T, D, H] */
  void* Y_h;                    /* [D, B, H]; layout 1: [B, D, H] */
} onegru_call;

/* Returns the version of the library, 65536 · ONEGRU_VERSION_MAJOR + ONEGRU_VERSION_MINOR. */
ONEGRU_API uint32_t onegru_version(void);

/* Returns the error of the last call that failed in this thread, in one line. It is valid until the next failure. */
ONEGRU_API const char* onegru_error_message(void);

/* Sets the number of threads that a call of onegru_layer_run can use, 1…64, including the caller. Default: 1. Results
 * do not depend on it. */
ONEGRU_API onegru_status onegru_set_num_threads(size_t count);

/* Initializes a specification: float32, forward, Sigmoid and Tanh, linear_before_reset 0, and no other option. The
 * macro sets spec->size. If you call the function from another language, set spec->size first; 0 counts as 144, the
 * size that includes `activations`. */
ONEGRU_API void onegru_spec_init(onegru_spec* spec, uint32_t input_size, uint32_t hidden_size);
#define onegru_spec_init(spec, input_size, hidden_size) \
  (onegru_spec_init)(onegru_spec_sized(spec), (input_size), (hidden_size))
static inline onegru_spec* onegru_spec_sized(onegru_spec* spec) {
  memset(spec, 0, sizeof(*spec));
  spec->size = sizeof(*spec);
  return spec;
}

/* Initializes options that change nothing. */
static inline void onegru_options_init(onegru_options* options) {
  memset(options, 0, sizeof(*options));
  options->size = sizeof(*options);
  options->storage.weight_storage = options->flush_subnormals = ONEGRU_AS_STORED;
}

/* Initializes a call without arrays. */
static inline void onegru_call_init(onegru_call* call, size_t T, size_t B) {
  memset(call, 0, sizeof(*call));
  call->size = sizeof(*call);
  call->T = T;
  call->B = B;
}

/* Creates a layer from W [D, 3H, I], R [D, 3H, H] and B [D, 6H], which it copies. Gates are in the order z, r, h. B has
 * Wb of z, r, h, then Rb of z, r, h; null means zeros. The elements are double for float64, and float for other types.
 */
ONEGRU_API onegru_status onegru_layer_create(const onegru_spec* spec, const void* W, const void* R, const void* B,
                                             onegru_layer** layer);

/* Opens the layer at `index` of a .safetensors file from `onegru.save_layers`. The lowest layer of a stack is 0, and an
 * index after the last layer returns ONEGRU_NO_SUCH_LAYER. options: null for those of the file. The path is in UTF-8 on
 * all systems. */
ONEGRU_API onegru_status onegru_layer_open(const char* path, size_t index, const onegru_options* options,
                                           onegru_layer** layer);
/* Reads a layer from a file in memory. You can free the memory after the call. */
ONEGRU_API onegru_status onegru_layer_read(const void* bytes, size_t size, size_t index, const onegru_options* options,
                                           onegru_layer** layer);

/* Open or read all layers of a file, the lowest first. The file is read once, so that all layers are of the same
 * version of it. capacity: the length of `layers`; ONEGRU_MAX_LAYERS is always enough. */
#define ONEGRU_MAX_LAYERS 256
ONEGRU_API onegru_status onegru_layers_open(const char* path, const onegru_options* options, size_t capacity,
                                            onegru_layer** layers, size_t* count);
ONEGRU_API onegru_status onegru_layers_read(const void* bytes, size_t size, const onegru_options* options,
                                            size_t capacity, onegru_layer** layers, size_t* count);

/* Writes a layer's specification. Set spec->size first; at most this number of bytes is written. */
ONEGRU_API onegru_status onegru_layer_spec(const onegru_layer* layer, onegru_spec* spec);

/* Runs a layer on a batch of sequences. */
ONEGRU_API onegru_status onegru_layer_run(const onegru_layer* layer, const onegru_call* call);

/* Destroys a layer; null is allowed. Its streams remain valid. */
ONEGRU_API void onegru_layer_destroy(onegru_layer* layer);

/* Creates a stream, which holds the states [rows, H] of a forward layer, and sets them to zeros.
 *
 * All memory is allocated here. The functions below allocate nothing, lock nothing and make no system calls, so that
 * you can call them from real-time threads. There are two exceptions if the program loaded the library by dlopen: a
 * thread's first error, and its first use of AMX, may allocate thread-local memory in the C library. */
ONEGRU_API onegru_status onegru_stream_create(const onegru_layer* layer, size_t rows, onegru_stream** stream);

/* Runs one step of all rows: X [rows, I], attention [rows] or null, Y [rows, H]. */
ONEGRU_API onegru_status onegru_stream_step(onegru_stream* stream, const void* X, const void* attention, void* Y);

/* Runs T steps of the rows row[0…n-1], which must differ. If `row` is null, all rows run and n is ignored. X [T, n, I],
 * attention [T, n] or null, Y [T, n, H]. Other rows keep their states. */
ONEGRU_API onegru_status onegru_stream_run(onegru_stream* stream, size_t T, const int32_t* row, size_t n, const void* X,
                                           const void* attention, void* Y);

/* Read or write the states [rows, H]: double for float64, and float for other types, including the 16-bit types. */
ONEGRU_API onegru_status onegru_stream_get_state(const onegru_stream* stream, void* h);
ONEGRU_API onegru_status onegru_stream_set_state(onegru_stream* stream, const void* h);

/* Sets the state of a row to zeros, or of all rows with ONEGRU_ALL_ROWS. */
#define ONEGRU_ALL_ROWS SIZE_MAX
ONEGRU_API onegru_status onegru_stream_reset(onegru_stream* stream, size_t row);

/* Destroys a stream; null is allowed. */
ONEGRU_API void onegru_stream_destroy(onegru_stream* stream);

#if defined(__cplusplus)
}
#endif

#endif /* ONEGRU_H_ */
