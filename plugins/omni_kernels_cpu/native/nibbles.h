// Products of 4-bit weights with few rows of floats. A group's weights are multiplied as they are stored, and its sum by their scale: they are not
// rounded. A row's sum is taken in one order, whatever the number of rows.
#pragma once
#include "integers.h"
#include "team.h"

namespace {

typedef uint8_t Nibbles __attribute__((vector_size(16)));

// A group's weights less what stands for 0, which is `zero` with ZEROS and else 8.
template <bool ZEROS>
struct GroupWeights {
  int8_t values[32];
  float zero;

  inline GroupWeights(const uint8_t *from, const bf16 *zeros) : zero(ZEROS ? widen(*zeros) : 0) {
    Nibbles bytes = read<Nibbles>(from), shift = ZEROS ? Nibbles{} : Nibbles{} + 8;
    write(values, (bytes & 15) - shift);
    write(values + 16, (bytes >> 4) - shift);
  }

  inline Floats operator()(int i) const {
    Floats some = load_bytes(values + i);
    return ZEROS ? some - broadcast(zero) : some;
  }
};

// Those of widen_stretch().
struct WideWeights {
  const float *values;
  inline Floats operator()(int i) const { return read<Floats>(values + i); }
};

constexpr int64_t STRETCH = 16;  // groups that all outputs of a block are multiplied with before the next, while their inputs stay in the first cache

// Adds the products of the groups from `begin` to `end` of one output with M rows. `weights` makes those of a group from its number.
template <int M, class Weights>
inline __attribute__((always_inline)) void add_groups(Weights weights, const bf16 *scales, int64_t begin, int64_t end, const float *const *inputs,
                                                      Floats *sums) {
  Floats total[M];
  for (int m = 0; m < M; m++) total[m] = sums[m];
  for (int64_t g = begin; g < end; g++) {
    const auto group = weights(g);
    Floats parts[M] = {}, scale = broadcast(widen(scales[g]));
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += W) {
      Floats w = group(i);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) parts[m] += w * read<Floats>(inputs[m] + 32 * g + i);
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) total[m] += scale * parts[m];
  }
  for (int m = 0; m < M; m++) sums[m] = total[m];
}

template <bool ZEROS>
inline GroupWeights<ZEROS> group_of(const Outputs &a, int output, int64_t g) {
  const uint8_t *from = a.weights[output] + 16 * g;
  if (g % 4 == 0) fetch(from + AHEAD);
  return {from, ZEROS ? a.zeros[output] + g : nullptr};
}

// Few rows: weights are widened in registers. `rows`: floats.
template <bool ZEROS, int M>
__attribute__((noinline)) void nibble_block(const Outputs &a, int64_t size, const void *const *rows, float *out) {
  Floats sums[OUTS][M] = {};
  int64_t groups = size / 32;
  for (int64_t begin = 0; begin < groups; begin += STRETCH) {
    int64_t end = begin + STRETCH < groups ? begin + STRETCH : groups;
    for (int o = 0; o < OUTS; o++)
      add_groups<M>([&](int64_t g) { return group_of<ZEROS>(a, o, g); }, a.scales[o], begin, end, (const float *const *)rows, sums[o]);
  }
  for (int o = 0; o < OUTS; o++)
    for (int m = 0; m < M; m++) out[m * OUTS + o] = sum(sums[o][m]);
}

constexpr RowsBlock NIBBLE_BLOCKS[] = {nullptr, nibble_block<false, 1>, nibble_block<false, 2>, nibble_block<false, 3>, nibble_block<false, 4>};
constexpr RowsBlock ZERO_POINT_NIBBLE_BLOCKS[] = {nullptr, nibble_block<true, 1>, nibble_block<true, 2>, nibble_block<true, 3>, nibble_block<true, 4>};

// More rows: a stretch's weights are widened once, in memory, [OUTS][32 * STRETCH].
template <bool ZEROS>
inline void widen_stretch(const Outputs &a, int64_t begin, int64_t end, float *wide) {
  for (int o = 0; o < OUTS; o++)
    for (int64_t g = begin; g < end; g++) {
      const GroupWeights<ZEROS> group = group_of<ZEROS>(a, o, g);
      for (int i = 0; i < 32; i += W) write(wide + 32 * (o * STRETCH + g - begin) + i, group(i));
    }
}

// Adds the products of M rows to `sums`, [OUTS][M].
template <int M>
__attribute__((noinline)) void add_stretch(const Outputs &a, const float *wide, int64_t begin, int64_t end, const float *const *inputs, Floats *sums) {
  for (int o = 0; o < OUTS; o++)
    add_groups<M>([&](int64_t g) { return WideWeights{wide + 32 * (o * STRETCH + g - begin)}; }, a.scales[o], begin, end, inputs, sums + o * M);
}

typedef void (*Stretch)(const Outputs &a, const float *wide, int64_t begin, int64_t end, const float *const *inputs, Floats *sums);
constexpr Stretch ADD_STRETCH[] = {nullptr, add_stretch<1>, add_stretch<2>, add_stretch<3>, add_stretch<4>};

// As outputs_product(); rows are floats.
template <class Emit>
inline void nibble_product(const omni_matrix &a, const void *const *xs, int rows, int64_t begin, int64_t end, Scratch scratch, Emit emit) {
  if (rows <= 4) return outputs_product(a.zero_points ? ZERO_POINT_NIBBLE_BLOCKS : NIBBLE_BLOCKS, a, xs, rows, begin, end, emit);
  Floats *sums = scratch.take<Floats>(rows * OUTS);
  float wide[OUTS * 32 * STRETCH];
  int64_t groups = a.in / 32;
  for (int64_t o = begin; o < end; o += OUTS) {
    Outputs outputs = outputs_of(a, o, end);
    for (int i = 0; i < rows * OUTS; i++) sums[i] = Floats{};
    for (int64_t g = 0; g < groups; g += STRETCH) {
      int64_t after = g + STRETCH < groups ? g + STRETCH : groups;
      (a.zero_points ? widen_stretch<true> : widen_stretch<false>)(outputs, g, after, wide);
      for (int row = 0; row < rows; row += 4)
        ADD_STRETCH[rows - row < 4 ? rows - row : 4](outputs, wide, g, after, (const float *const *)xs + row, sums + row * OUTS);
    }
    emit_sums(a, sums, rows, o, end, emit);
  }
}

}  // namespace
