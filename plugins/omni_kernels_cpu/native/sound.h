// A vocoder's convolutions in one call: causal convolutions, upsampling, residual units with periodic activations, ConvNeXt blocks. Each layer
// keeps its last inputs in the stream's memory, so a chunk may be computed in pieces that stay in the cache, with the same bits.
#pragma once
#include "convolution.h"

namespace {

constexpr int64_t PIECE = 96 * 1024;  // elements of an upsampled piece, about

struct Sizes {
  int64_t plane = 0, hidden = 0, floats = 0, outputs = 0;  // words: of the two planes, of a plane of floats, of all layers' outputs
};

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t reach_of(const omni_sound_layer &l) { return (l.taps - 1) * l.dilation; }
inline int64_t lines(int64_t words) { return (words + 15) / 16 * 16; }

inline int64_t piece_of(const omni_sound_layer &l, int64_t columns) {
  int64_t most = larger(PIECE / (l.out * l.rate), 16);
  return most < columns ? most : columns;
}

inline Sizes sizes_of(const omni_sound_stack *stack, int64_t columns) {
  Sizes s;
  int64_t f = stack->form;
  s.outputs = lines(stack->layers[0].in * stride_of(columns));
  for (int64_t i = 0; i < stack->count; i++) {
    const omni_sound_layer &l = stack->layers[i];
    if (l.kind == OMNI_UPSAMPLING) columns = piece_of(l, columns);
    int64_t joined = stride_of(columns + reach_of(l)), stride = stride_of(columns);
    s.plane = larger(s.plane, rows_of(f, l.in) * joined);
    if (l.kind == OMNI_RESIDUAL) s.hidden = larger(s.hidden, rows_of(f, l.out) * stride);
    if (l.kind == OMNI_CONVNEXT) {
      s.hidden = larger(s.hidden, rows_of(f, l.inner) * stride);
      s.floats = larger(s.floats, l.in * joined);
    }
    columns *= l.rate;
    if (l.kind == OMNI_CONVOLUTION || l.kind == OMNI_UPSAMPLING) s.outputs += lines(l.out * stride_of(columns));
  }
  return s;
}

template <class T>
struct SoundPass {
  const omni_sound_stack *stack;
  const omni_sound *call;
  const omni_team *team;
  float *memory;
  T *output;
  uint32_t *plane, *hidden;
  float *floats;
  bool *begun;       // of each layer
  int64_t produced;  // samples

  int64_t form() const { return stack->form; }

  // The last columns of a layer's input, for the next piece: those of memory and row together.
  static void remember(float *memory, int64_t reach, const float *row, int64_t columns) {
    int64_t kept = columns < reach ? reach - columns : 0;
    memmove(memory, memory + reach - kept, kept * sizeof(float));
    memcpy(memory + kept, row + columns - (reach - kept), (reach - kept) * sizeof(float));
  }

  // Rows between memory and the last column, activated, as a convolution reads them. Columns behind the last are not set.
  Plane activate(const omni_sound_layer &l, const float *x, int64_t stride, int64_t columns) {
    int64_t reach = reach_of(l), pairs = (l.in + 1) / 2, rows = rows_of(form(), l.in);
    Plane to{plane, stride_of(columns + reach)};
    Range mine = share(pairs, 1, team);
    const float *silent = x;  // of an odd number of channels, the row beside the last, which is multiplied by zeros
    for (int64_t p = mine.begin; p < mine.end; p++) {
      int64_t a = 2 * p, b = a + 1;
      bool two = b < l.in;
      float *before = memory + l.memory + a * reach, *other = two ? before + reach : before;
      const float *low = x + a * stride, *high = two ? x + b * stride : silent;
      auto move = [&](const float *from, const float *beside, int64_t count, int64_t at) {
        FOR_VECTORS(t, count) {
          Floats v = activated(l.before, a, load_at(from, t, count));
          Floats w = two ? activated(l.before, b, load_at(beside, t, count)) : Floats{};
          put(form(), to, a, at + t, v, w, two);
        }
      };
      move(before, other, reach, 0);
      move(low, high, columns, reach);
      remember(before, reach, low, columns);
      if (two) remember(other, reach, high, columns);
    }
    if (form() == OMNI_TILES && team->index == 0)
      for (int64_t row = pairs; row < rows; row++) memset(to.row(row), 0, to.stride * sizeof(uint32_t));
    wait(team);
    return to;
  }

  void clear_rows(Plane to, int64_t channels) {
    if (form() != OMNI_TILES || team->index) return;
    for (int64_t row = (channels + 1) / 2; row < rows_of(form(), channels); row++) memset(to.row(row), 0, to.stride * sizeof(uint32_t));
  }

  // A sink that writes function(channel, vector) to a plane.
  template <class F>
  auto into(Plane to, const float *bias, F function) {
    return [this, to, bias, function](int64_t o, int64_t count, int64_t t, int64_t n, const float *c, int64_t stride) {
      for (int64_t i = 0; i < count; i += 2) {
        bool two = i + 1 < count;
        FOR_VECTORS(j, n) {
          Floats low = function(o + i, read<Floats>(c + i * stride + j) + bias[o + i]);
          Floats high = two ? function(o + i + 1, read<Floats>(c + (i + 1) * stride + j) + bias[o + i + 1]) : Floats{};
          put(form(), to, o + i, t + j, low, high, two);
        }
      }
    };
  }

  void residual(const omni_sound_layer &l, float *x, int64_t stride, int64_t columns) {
    Plane active = activate(l, x, stride, columns), middle{hidden, stride_of(columns)};
    convolve(form(), l.first, l.in, l.out, l.taps, l.dilation, active, columns, team,
             into(middle, l.first_bias, [&](int64_t o, Floats v) { return activated(l.between, o, v); }));
    clear_rows(middle, l.out);
    wait(team);
    convolve(form(), l.second, l.out, l.out, 1, 1, middle, columns, team,
             [&](int64_t o, int64_t count, int64_t t, int64_t n, const float *c, int64_t wide) {
               for (int64_t i = 0; i < count; i++)
                 FOR_VECTORS(j, n) {
                   float *to = x + (o + i) * stride + t + j;
                   write(to, read<Floats>(to) + (read<Floats>(c + i * wide + j) + l.second_bias[o + i]));
                 }
             });
    wait(team);
  }

  void convnext(const omni_sound_layer &l, float *x, int64_t stride, int64_t columns) {
    int64_t reach = reach_of(l), joined = stride_of(columns + reach);
    Range mine = share(l.in, 1, team);
    for (int64_t c = mine.begin; c < mine.end; c++) {
      float *before = memory + l.memory + c * reach, *row = floats + c * joined, *from = x + c * stride;
      memcpy(row, before, reach * sizeof(float));
      memcpy(row + reach, from, columns * sizeof(float));
      remember(before, reach, from, columns);
      FOR_VECTORS(t, columns) {  // in place: a column is read for the last time by the vector that it begins
        Floats total = broadcast(l.depthwise_bias[c]);
        for (int64_t tap = 0; tap < l.taps; tap++) total += read<Floats>(row + t + tap * l.dilation) * l.depthwise[c * l.taps + tap];
        write(row + t, total);
      }
    }
    wait(team);
    Plane normed{plane, stride_of(columns)}, middle{hidden, stride_of(columns)};
    Range some = share(columns, W, team);
    for (int64_t t = some.begin; t < some.end; t += W) {
      Floats mean{}, squares{};
      for (int64_t c = 0; c < l.in; c++) mean += read<Floats>(floats + c * joined + t);
      mean = mean / (float)l.in;
      for (int64_t c = 0; c < l.in; c++) {
        Floats apart = read<Floats>(floats + c * joined + t) - mean;
        squares += apart * apart;
      }
      squares = squares / (float)l.in + (float)l.eps;
      Floats factor;
      for (int i = 0; i < W; i++) factor[i] = 1.0f / __builtin_sqrtf(squares[i]);
      for (int64_t c = 0; c < l.in; c += 2) {
        bool two = c + 1 < l.in;
        Floats low = (read<Floats>(floats + c * joined + t) - mean) * factor * l.norm[c] + l.norm_bias[c];
        Floats high = two ? (read<Floats>(floats + (c + 1) * joined + t) - mean) * factor * l.norm[c + 1] + l.norm_bias[c + 1] : Floats{};
        put(form(), normed, c, t, low, high, two);
      }
    }
    clear_rows(normed, l.in);
    wait(team);
    convolve(form(), l.first, l.in, l.inner, 1, 1, normed, columns, team, into(middle, l.first_bias, [](int64_t, Floats v) { return gelu(v); }));
    clear_rows(middle, l.inner);
    wait(team);
    convolve(form(), l.second, l.inner, l.out, 1, 1, middle, columns, team,
             [&](int64_t o, int64_t count, int64_t t, int64_t n, const float *c, int64_t wide) {
               for (int64_t i = 0; i < count; i++)
                 FOR_VECTORS(j, n) {
                   float *to = x + (o + i) * stride + t + j;
                   write(to, read<Floats>(to) + (read<Floats>(c + i * wide + j) + l.second_bias[o + i]) * l.gamma[o + i]);
                 }
             });
    wait(team);
  }

  void convolution(const omni_sound_layer &l, const float *x, int64_t stride, int64_t columns, float *y, int64_t wide) {
    Plane active = activate(l, x, stride, columns);
    convolve(form(), l.first, l.in, l.out, l.taps, l.dilation, active, columns, team,
             [&](int64_t o, int64_t count, int64_t t, int64_t n, const float *c, int64_t from) {
               for (int64_t i = 0; i < count; i++)
                 FOR_VECTORS(j, n) write(y + (o + i) * wide + t + j, read<Floats>(c + i * from + j) + l.first_bias[o + i]);
             });
    wait(team);
  }

  // Each output channel has `rate` rows of sums, which take turns in its columns. Returns the columns made.
  int64_t upsampling(const omni_sound_layer &l, bool begins, const float *x, int64_t stride, int64_t columns, float *y, int64_t wide) {
    int64_t rate = l.rate, dropped = l.trims && begins ? rate : 0;
    Plane active = activate(l, x, stride, columns);
    convolve(form(), l.first, l.in, l.out * rate, l.taps, 1, active, columns, team,
             [&](int64_t q, int64_t count, int64_t t, int64_t n, const float *c, int64_t from) {
               for (int64_t i = 0; i < count; i++) {
                 int64_t o = (q + i) / rate;
                 float bias = l.first_bias[o], *to = y + o * wide + (q + i) % rate - dropped;
                 for (int64_t j = t * rate < dropped ? 1 : 0; j < n; j++) to[(t + j) * rate] = c[i * from + j] + bias;
               }
             });
    wait(team);
    return columns * rate - dropped;
  }

  void emit(int64_t channels, const float *x, int64_t stride, int64_t columns) {
    Range mine = share(channels, 1, team);
    for (int64_t c = mine.begin; c < mine.end; c++) from_floats(x + c * stride, columns, output + c * call->samples + produced);
    produced += columns;
    wait(team);
  }

  // The layers from `layer` on; `outputs`: memory for their outputs.
  void run(int64_t layer, float *x, int64_t stride, int64_t columns, float *outputs) {
    for (; layer < stack->count && columns > 0; layer++) {
      const omni_sound_layer &l = stack->layers[layer];
      if (l.kind == OMNI_RESIDUAL) {
        residual(l, x, stride, columns);
      } else if (l.kind == OMNI_CONVNEXT) {
        convnext(l, x, stride, columns);
      } else if (l.kind == OMNI_CONVOLUTION) {
        int64_t wide = stride_of(columns);
        convolution(l, x, stride, columns, outputs, wide);
        x = outputs, stride = wide;
        outputs += lines(l.out * wide);
      } else {
        int64_t most = piece_of(l, columns), wide = stride_of(most * l.rate);
        for (int64_t t = 0; t < columns; t += most) {
          int64_t some = columns - t < most ? columns - t : most;
          int64_t made = upsampling(l, !begun[layer], x + t, stride, some, outputs, wide);
          begun[layer] = true;
          run(layer + 1, outputs, wide, made, outputs + lines(l.out * wide));
        }
        return;
      }
    }
    if (columns > 0) emit(stack->layers[stack->count - 1].out, x, stride, columns);
  }
};

inline void sound_memory(const omni_sound_stack *stack, const omni_sound *call, int64_t *shared, int64_t *own) {
  Sizes s = sizes_of(stack, call->columns);
  *shared = (lines(s.plane) + lines(s.hidden) + lines(s.floats) + s.outputs + 64) * sizeof(float);
  *own = stack->count + 64;
}

template <class T>
void sound(const omni_sound_stack *stack, const omni_sound *call, const omni_team *team) {
  Tiles tiles;
  (void)tiles;
  Sizes s = sizes_of(stack, call->columns);
  Scratch shared{team->shared}, own{team->own};
  SoundPass<T> pass{stack, call, team, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0};
  pass.plane = shared.take<uint32_t>(s.plane);
  pass.hidden = shared.take<uint32_t>(s.hidden);
  pass.floats = shared.take<float>(s.floats);
  float *outputs = shared.take<float>(s.outputs);
  pass.begun = own.take<bool>(stack->count);
  int64_t channels = stack->layers[0].in, ends = stack->layers[stack->count - 1].out, stride = stride_of(call->columns);
  for (int64_t row = 0; row < call->batch; row++) {
    pass.memory = call->memory + row * call->memory_size;
    pass.output = (T *)call->output + row * ends * call->samples;
    pass.produced = 0;
    for (int64_t i = 0; i < stack->count; i++) pass.begun[i] = call->begun != 0;
    const T *x = (const T *)call->x + row * channels * call->columns;
    Range mine = share(channels, 1, team);
    for (int64_t c = mine.begin; c < mine.end; c++) to_floats(x + c * call->columns, call->columns, outputs + c * stride);
    wait(team);
    pass.run(0, outputs, stride, call->columns, outputs + lines(channels * stride));
  }
}

}  // namespace
