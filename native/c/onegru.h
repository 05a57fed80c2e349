/* GRU layers and streams for programs in C, and in whatever calls C: exact, with the same bits as the Python package.
 *
 *   z = f(clip(x·Wzᵀ + h·Rzᵀ + Wbz + Rbz))
 *   r = f(clip(x·Wrᵀ + h·Rrᵀ + Wbr + Rbr))
 *   n = g(clip(x·Whᵀ + (r∘h)·Rhᵀ + Wbh + Rbh))     linear_before_reset = 0
 *   n = g(clip(x·Whᵀ + r∘(h·Rhᵀ + Rbh) + Wbh))     linear_before_reset = 1
 *   h = (1 - z)∘n + z∘h
 *
 * T: steps, B: rows of a batch, I: input_size, H: hidden_size, D: directions. Arrays are contiguous, their elements
 * aligned, in the shapes given here, the last axis the fastest. Names are those of ONNX's GRU-22.
 *
 * A function that can fail returns an onegru_status; what is wrong is then in onegru_error_message(). Nothing else is
 * changed by a call that fails. No function takes what another one made after it was destroyed. Layers are constant:
 * threads may share them. A stream is used by one thread at a time. */

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

/* The version of onegru that this header belongs to. A program runs with every library of the same major version, older
 * or newer than its header, that has the functions it calls. */
#define ONEGRU_VERSION_MAJOR 0
#define ONEGRU_VERSION_MINOR 1

typedef enum onegru_status {
  ONEGRU_OK = 0,
  ONEGRU_INVALID_ARGUMENT = 1, /* the message names it */
  ONEGRU_OUT_OF_MEMORY = 2,
  ONEGRU_CANNOT_READ = 3,   /* the message has the path, and the system's reason */
  ONEGRU_BAD_FILE = 4,      /* broken, or not one that onegru wrote */
  ONEGRU_NO_SUCH_LAYER = 5, /* the file has fewer */
  ONEGRU_UNSUPPORTED = 6,   /* by this build, this processor, or this version of the library */
  ONEGRU_INTERNAL = 7       /* a bug */
} onegru_status;

typedef enum onegru_dtype {
  ONEGRU_FLOAT16 = 0,
  ONEGRU_BFLOAT16 = 1,
  ONEGRU_FLOAT32 = 2,
  ONEGRU_FLOAT64 = 3,
  ONEGRU_INT8 = 4 /* only for weight_storage */
} onegru_dtype;

typedef enum onegru_direction { ONEGRU_FORWARD = 0, ONEGRU_REVERSE = 1, ONEGRU_BIDIRECTIONAL = 2 } onegru_direction;

/* What a step does with an attention score a. */
typedef enum onegru_attention {
  ONEGRU_NO_ATTENTION = 0,
  ONEGRU_ATTENTION_OPENVINO = 1, /* z = (1 - a)·z, as OpenVINO's AUGRUCell */
  ONEGRU_ATTENTION_DIEN = 2      /* z = 1 - a·(1 - z), as the paper on DIEN */
} onegru_attention;

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

/* alpha, beta: rounded to float32; NaN for ONNX's defaults; ignored by functions that take none. */
typedef struct onegru_activation {
  int32_t function; /* an onegru_function */
  int32_t reserved; /* 0 */
  double alpha;
  double beta;
} onegru_activation;

/* How a layer keeps W and R. Only float32 layers keep them in another type than their own. */
typedef struct onegru_storage {
  int32_t weight_storage;  /* an onegru_dtype */
  int32_t activation_bits; /* of inputs of products: 16 or 8 with int8, 16 or 0 (float32) with bfloat16; else 0 */
  uint32_t group;          /* how many int8 share a scale: a multiple of 4, or 0 for a row; else 0 */
} onegru_storage;

/* The structures below begin with their size in your header, which onegru_..._init sets. They grow at the end: fields
 * that the program's header lacks, and fields that the library does not know, count as 0. A library refuses a field
 * that it does not know and that is not 0. onegru_activation and onegru_storage never change. */

/* A layer without its weights. */
typedef struct onegru_spec {
  uint32_t size;
  uint32_t input_size;
  uint32_t hidden_size;
  int32_t dtype;     /* of X, h and Y */
  int32_t direction; /* an onegru_direction */
  int32_t linear_before_reset;
  int32_t attention; /* an onegru_attention */
  onegru_storage storage;
  double clip;                      /* > 0, rounded to float32; infinity for none */
  onegru_activation activations[4]; /* f and g of the first direction, then those of the second */
  int32_t flush_subnormals;         /* 1: states below 2^-100, in float64 2^-1000, become 0; else 0 */
  int32_t reserved;                 /* 0 */
} onegru_spec;

/* What a layer of a file gets instead of what the file says. */
typedef struct onegru_options {
  uint32_t size;
  onegru_storage storage;   /* weight_storage ONEGRU_AS_STORED: what the file has, with int8 inputs of 16 bits */
  int32_t flush_subnormals; /* as in onegru_spec, or ONEGRU_AS_STORED */
  int32_t reserved;         /* 0 */
} onegru_options;
#define ONEGRU_AS_STORED (-1)

typedef struct onegru_layer onegru_layer;
typedef struct onegru_stream onegru_stream;

/* One call of a layer. Absent arrays are null. Outputs overlap no other array, but Y_h may be initial_h. */
typedef struct onegru_call {
  uint32_t size;
  int32_t layout; /* 0, or 1: batch first */
  size_t T;
  size_t B;
  const void* X;                /* [T, B, I]; layout 1: [B, T, I] */
  const int32_t* sequence_lens; /* [B], each 0…T; absent: all T */
  const void* initial_h;        /* [D, B, H]; layout 1: [B, D, H]; absent: zeros */
  const void* attention;        /* [T, B]; layout 1: [B, T]; with attention, and only then */
  void* Y;                      /* [T, D, B, H]; layout 1: [B, T, D, H] */
  void* Y_h;                    /* [D, B, H]; layout 1: [B, D, H] */
} onegru_call;

/* 65536 · ONEGRU_VERSION_MAJOR + ONEGRU_VERSION_MINOR, of the library. */
ONEGRU_API uint32_t onegru_version(void);

/* What was wrong with this thread's last call that failed, in one line; valid until the next one fails. */
ONEGRU_API const char* onegru_error_message(void);

/* How many threads a call of onegru_layer_run may use, 1…64, its own included. It is 1 until this is called. Results
 * never depend on it. */
ONEGRU_API onegru_status onegru_set_num_threads(size_t count);

/* A float32 layer that runs forward, with Sigmoid and Tanh, linear_before_reset 0, and nothing else. The macro passes
 * the size of your header's structure. From a language without it, set spec->size first; 0 counts as 144, the size up
 * to `activations`. */
ONEGRU_API void onegru_spec_init(onegru_spec* spec, uint32_t input_size, uint32_t hidden_size);
#define onegru_spec_init(spec, input_size, hidden_size) \
  (onegru_spec_init)(onegru_spec_sized(spec), (input_size), (hidden_size))
static inline onegru_spec* onegru_spec_sized(onegru_spec* spec) {
  memset(spec, 0, sizeof(*spec));
  spec->size = sizeof(*spec);
  return spec;
}

/* What the file has. */
static inline void onegru_options_init(onegru_options* options) {
  memset(options, 0, sizeof(*options));
  options->size = sizeof(*options);
  options->storage.weight_storage = options->flush_subnormals = ONEGRU_AS_STORED;
}

/* A call without arrays. */
static inline void onegru_call_init(onegru_call* call, size_t T, size_t B) {
  memset(call, 0, sizeof(*call));
  call->size = sizeof(*call);
  call->T = T;
  call->B = B;
}

/* W [D, 3H, I], R [D, 3H, H], in gate order z, r, h, and B [D, 6H], Wb of z, r, h, then Rb of z, r, h, or null for
 * zeros: of double for float64, else of float. They are copied. */
ONEGRU_API onegru_status onegru_layer_create(const onegru_spec* spec, const void* W, const void* R, const void* B,
                                             onegru_layer** layer);

/* The layer at `index` of a .safetensors file that `onegru.save_layers` wrote: of a stack, the lowest is 0; past the
 * last one ONEGRU_NO_SUCH_LAYER. options: null for what the file has. The path is in UTF-8 on Windows, too. */
ONEGRU_API onegru_status onegru_layer_open(const char* path, size_t index, const onegru_options* options,
                                           onegru_layer** layer);
/* The same of a file in memory, which is not needed afterwards. */
ONEGRU_API onegru_status onegru_layer_read(const void* bytes, size_t size, size_t index, const onegru_options* options,
                                           onegru_layer** layer);

/* All layers of such a file, the lowest first, of one reading: a stack never has layers of two versions of the file.
 * capacity: how many `layers` has room for; ONEGRU_MAX_LAYERS is always enough. */
#define ONEGRU_MAX_LAYERS 256
ONEGRU_API onegru_status onegru_layers_open(const char* path, const onegru_options* options, size_t capacity,
                                            onegru_layer** layers, size_t* count);
ONEGRU_API onegru_status onegru_layers_read(const void* bytes, size_t size, const onegru_options* options,
                                            size_t capacity, onegru_layer** layers, size_t* count);

/* spec->size must be set: so much is written. */
ONEGRU_API onegru_status onegru_layer_spec(const onegru_layer* layer, onegru_spec* spec);

ONEGRU_API onegru_status onegru_layer_run(const onegru_layer* layer, const onegru_call* call);

/* Null is allowed. Streams keep what they need. */
ONEGRU_API void onegru_layer_destroy(onegru_layer* layer);

/* The states [rows, H] of a layer that runs forward, from zeros on. This allocates all that its steps need: the
 * functions below allocate nothing, take no lock and call nothing of the system, so they suit a thread of real time. Of
 * a library that the program has loaded by itself (dlopen), a thread's first refusal, and its first products by AMX,
 * which take several rows in int8, may have the C library allocate. */
ONEGRU_API onegru_status onegru_stream_create(const onegru_layer* layer, size_t rows, onegru_stream** stream);

/* One step of all rows: X [rows, I], attention [rows] or null, Y [rows, H]. */
ONEGRU_API onegru_status onegru_stream_step(onegru_stream* stream, const void* X, const void* attention, void* Y);

/* T steps of some rows: row [n], each at most once, or null for all of them, then n is ignored. X [T, n, I], attention
 * [T, n] or null, Y [T, n, H]. The others keep their states. */
ONEGRU_API onegru_status onegru_stream_run(onegru_stream* stream, size_t T, const int32_t* row, size_t n, const void* X,
                                           const void* attention, void* Y);

/* The states [rows, H]: of double for float64, else of float, also where X and Y have 16 bits. */
ONEGRU_API onegru_status onegru_stream_get_state(const onegru_stream* stream, void* h);
ONEGRU_API onegru_status onegru_stream_set_state(onegru_stream* stream, const void* h);

/* Sets the state of a row to zeros; of all rows: ONEGRU_ALL_ROWS. */
#define ONEGRU_ALL_ROWS SIZE_MAX
ONEGRU_API onegru_status onegru_stream_reset(onegru_stream* stream, size_t row);

/* Null is allowed. */
ONEGRU_API void onegru_stream_destroy(onegru_stream* stream);

#if defined(__cplusplus)
}
#endif

#endif /* ONEGRU_H_ */
