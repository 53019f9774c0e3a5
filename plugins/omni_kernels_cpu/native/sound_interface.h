// The structures of a vocoder's convolutions. Tensors are [channels, columns], columns adjacent.
#pragma once
#include <stdint.h>

enum { OMNI_CONVOLUTION = 0, OMNI_UPSAMPLING = 1, OMNI_RESIDUAL = 2, OMNI_CONVNEXT = 3 };

// The form of packed weights and of the columns that they are multiplied with.
enum { OMNI_WORDS = 0, OMNI_PAIRS = 1, OMNI_TILES = 2 };

typedef struct {
  const float *frequency, *scale;  // [channels] of x + scale * sin(pi * frequency * x)^2; null: x
} omni_snake;

// The same fields serve all kinds; `first` and `second` are packed in the form of the stack (see convolution.h).
typedef struct {
  int64_t kind;
  int64_t in, out;             // channels
  int64_t taps, dilation;      // of the first convolution; of an upsampling 1 or 2: inputs that an output depends on
  int64_t rate;                // outputs per input of an upsampling, else 1
  int64_t trims;               // an upsampling whose first input at a stream's beginning gives no output
  int64_t inner;               // units between the two layers of a ConvNeXt block
  int64_t memory;              // where the layer's last inputs are in a stream's memory: [in, (taps - 1) * dilation]
  const void *first, *second;
  const float *first_bias, *second_bias;
  omni_snake before, between;  // of the inputs of the first and of the second convolution
  const float *depthwise, *depthwise_bias, *norm, *norm_bias, *gamma;  // of a ConvNeXt block: [in, taps], [in] each
  double eps;
} omni_sound_layer;

typedef struct {
  const omni_sound_layer *layers;
  int64_t count, form;
} omni_sound_stack;

typedef struct {
  const void *x;   // [batch, in, columns] of `dtype`
  float *memory;   // [batch, memory_size]
  void *output;    // [batch, out, samples] of `dtype`
  int64_t batch, columns, memory_size, samples, begun, dtype;
} omni_sound;
