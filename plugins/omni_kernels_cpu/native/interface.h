// The C interface of the library: plain structures of pointers and sizes, which Python fills through ctypes.
// Matrices are row-major, [out, in]. Strides and sizes count elements, not bytes.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "sound_interface.h"

#define OMNI_CPU_ABI 11

enum { OMNI_FLOAT32 = 0, OMNI_BFLOAT16 = 1, OMNI_INT8 = 2, OMNI_INT4 = 3, OMNI_INT8_GROUPS = 4, OMNI_CODES = 5, OMNI_FLOAT32_HALVES = 6 };

typedef struct {
  const void *weight;         // [out, in] of `kind`; float32 halves: bfloat16, multiplied as the float32 that it is; int4: [out, in / 32, 16], inputs j
                              // and j + 16 of 32 in the halves of byte j; codes: [out, in / 128, 192], bfloat16 in 12 bits, see omni_torch/quantization/coded_weights.py
  const float *scales;        // [out] for OMNI_INT8, else null
  const float *bias;          // [out] or null
  int64_t out, in;
  int64_t kind;
  const void *group_scales;   // [out, in / 32] bfloat16 for OMNI_INT4 and OMNI_INT8_GROUPS (`in` a multiple of 32); the words of OMNI_CODES; else null
  int64_t int8_inputs;        // of OMNI_INT8 and OMNI_INT4: rows are multiplied as integers, each row or 32 inputs with a scale of its own; see in_integers()
  int64_t zero_points;        // of int4: 1 if group_scales are [out, 2, in / 32], each output's scales and then the values that stand for 0; else 8
} omni_matrix;

typedef struct {
  const float *input_norm, *post_norm;  // [hidden]
  const float *head_norms;              // [heads + kv_heads, head_dim]; null: queries and keys are not normed
  omni_matrix qkv, output;
  omni_matrix gate_up, down;  // the feed-forward block or the shared expert; no weight: there is none
  omni_matrix shared_gate;    // [1, hidden]; no weight: the layer has no shared expert
  omni_matrix router;         // [experts, hidden]; no weight: the layer is not sparse
  const omni_matrix *experts; // gate_up and down of each expert in turn
  int64_t top_k, normalize;
  void *keys, *values;  // [slots, kv_heads, head_dim] of the step's dtype
} omni_layer;

typedef struct {
  const omni_layer *layers;
  const float *norm;  // [hidden]
  int64_t layer_count, hidden, heads, kv_heads, head_dim;
  double eps;
  int64_t pairs;  // 1: positions rotate neighbouring values of a head, 0: its halves
} omni_stack;

typedef struct {
  const void *x;         // [rows, hidden] of `dtype`
  const void *cos, *sin; // [rows, head_dim] of `dtype`
  const int32_t *pages;  // [rows, page_stride]: numbers of the cache's blocks. Adjacent rows of one request have equal pages
  const int32_t *lengths; // [rows], at least 1, the row's own position included
  void *output;          // [rows, hidden] of `dtype`: after the last norm
  void *captured;        // [rows, hidden] of `dtype`: the input of layer `capture`; null: none
  int64_t rows, page_stride, block_size, capture, dtype;
  int64_t run;           // of a decode step: this many adjacent rows are adjacent positions of one request; mostly 1
} omni_step;

// Frames of a code predictor: the talker's state and the frame's first code are positions 0 and 1; from then on, each position's output gives
// the next code, whose embedding is the next position. The layers' keys and values have rows * groups slots.
typedef struct {
  const void *hidden, *first;     // [rows, hidden] of `dtype`: the talker's state, and the embedding of the first code
  const void *cos, *sin;          // [groups, head_dim] of `dtype`
  const omni_matrix *heads;       // of the groups but the first, [vocab, hidden]
  const void *const *embeddings;  // of the groups but the first, [vocab, hidden] of `embedded`
  const double *temperature;      // [rows], 0: the best code; null: the best ones everywhere
  const double *uniforms;         // [rows, groups - 1], at which distributions are inverted
  int64_t *codes;                 // [rows, groups - 1]; -1 where no largest logit is finite
  void *total;                    // [rows, hidden] of `dtype`: the sum of all embeddings, the first included
  int64_t rows, groups, top_k, dtype, prompts;  // `prompts`: layers are computed as those of prompts
  int64_t embedded;               // `dtype`, or OMNI_BFLOAT16 for frames in float32
  double top_p;
} omni_frames;

typedef struct {
  const void *query;     // [rows, heads, head_dim]
  const void *keys, *values;
  const int64_t *slots;  // [rows, slot_stride]
  const int64_t *lengths;
  void *output;
  int64_t rows, heads, kv_heads, head_dim, slot_stride, dtype;
  double scale;
} omni_attention;

typedef struct {
  const void *x;              // [rows, hidden]
  const void *weights;        // [rows, top_k]
  const int64_t *chosen;      // [rows, top_k]
  const void *gate_up, *down; // [experts, 2 * inner, hidden], [experts, hidden, inner]
  void *output;
  int64_t rows, top_k, experts, hidden, inner, dtype;
  int64_t first;              // the number of the first of the experts; choices of others are left out
} omni_experts;

// The functions of one instruction set. Each is called by every thread of a team, with the same arguments.
typedef struct omni_team omni_team;
typedef struct {
  const char *name;
  void (*product)(const omni_matrix *, const void *x, int64_t dtype, int64_t rows, void *y, const omni_team *);
  void (*rms_norm)(const void *x, const void *add, const void *weight, double eps, int64_t rows, int64_t size, int64_t dtype,
                   void *total, void *y, const omni_team *);
  void (*attention)(const omni_attention *, const omni_team *);
  void (*experts)(const omni_experts *, const omni_team *);
  void (*decode)(const omni_stack *, const omni_step *, const omni_team *);
  void (*prefill)(const omni_stack *, const omni_step *, const omni_team *);
  void (*prefill_memory)(const omni_stack *, const omni_step *, int64_t *shared, int64_t *own);
  void (*frames)(const omni_stack *, const omni_frames *, const omni_team *);
  void (*sound)(const omni_sound_stack *, const omni_sound *, const omni_team *);
  void (*sound_memory)(const omni_sound_stack *, const omni_sound *, int64_t *shared, int64_t *own);
  int64_t sound_form;  // of weights in bfloat16
} omni_functions;

struct omni_team {
  int index, count;
  void *barrier;            // of the pool
  void (*wait)(void *barrier);
  char *shared;             // scratch memory of all threads
  char *own;                // scratch memory of this thread
};
