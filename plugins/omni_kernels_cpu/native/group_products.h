// Products of weights that have a scale per group, of 4 or 8 bits, with few rows of floats. A group's weights are multiplied as they are stored, and
// its sum by their scale: they are not rounded. A row's sum is taken in one order, whatever the number of rows.
#pragma once
#include "integers.h"
#include "team.h"

namespace {

typedef uint8_t Nibbles __attribute__((vector_size(16)));

// A group's 4-bit weights less what stands for 0, which is `zero` with ZEROS and else 8.
template <bool ZEROS>
struct NibbleGroup {
  static constexpr int BYTES = 16;
  int8_t values[32];
  float zero;

  inline NibbleGroup(const uint8_t *from, const bf16 *zeros) : zero(ZEROS ? widen(*zeros) : 0) {
    Nibbles bytes = read<Nibbles>(from), shift = ZEROS ? Nibbles{} : Nibbles{} + 8;
    write(values, (bytes & 15) - shift);
    write(values + 16, (bytes >> 4) - shift);
  }

  inline Floats operator()(int i) const {
    Floats some = load_bytes(values + i);
    return ZEROS ? some - broadcast(zero) : some;
  }
};

// A group's 8-bit weights, which are read in place.
struct ByteGroup {
  static constexpr int BYTES = 32;
  const int8_t *values;

  inline ByteGroup(const uint8_t *from, const bf16 *) : values((const int8_t *)from) {}

  inline Floats operator()(int i) const { return load_bytes(values + i); }
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

template <class Group>
inline Group group_of(const Outputs &a, int output, int64_t g) {
  const uint8_t *from = a.weights[output] + Group::BYTES * g;
  if (g * Group::BYTES % 64 == 0) fetch(from + AHEAD);
  return {from, a.zeros[output] ? a.zeros[output] + g : nullptr};
}

// Few rows: weights are widened in registers. `rows`: floats.
template <class Group, int M>
__attribute__((noinline)) void group_block(const Outputs &a, int64_t size, const void *const *rows, float *out) {
  Floats sums[OUTS][M] = {};
  int64_t groups = size / 32;
  for (int64_t begin = 0; begin < groups; begin += STRETCH) {
    int64_t end = begin + STRETCH < groups ? begin + STRETCH : groups;
    for (int o = 0; o < OUTS; o++)
      add_groups<M>([&](int64_t g) { return group_of<Group>(a, o, g); }, a.scales[o], begin, end, (const float *const *)rows, sums[o]);
  }
  for (int o = 0; o < OUTS; o++)
    for (int m = 0; m < M; m++) out[m * OUTS + o] = sum(sums[o][m]);
}

// More rows: a stretch's weights are widened once, in memory, [OUTS][32 * STRETCH].
template <class Group>
inline void widen_stretch(const Outputs &a, int64_t begin, int64_t end, float *wide) {
  for (int o = 0; o < OUTS; o++)
    for (int64_t g = begin; g < end; g++) {
      const Group group = group_of<Group>(a, o, g);
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

// The functions of one kind of groups.
struct GroupKind {
  RowsBlock few[5];  // by the number of rows
  void (*widen)(const Outputs &a, int64_t begin, int64_t end, float *wide);
};

template <class Group>
constexpr GroupKind group_kind() {
  return {{nullptr, group_block<Group, 1>, group_block<Group, 2>, group_block<Group, 3>, group_block<Group, 4>}, widen_stretch<Group>};
}

constexpr GroupKind IN_NIBBLES = group_kind<NibbleGroup<false>>(), WITH_ZEROS = group_kind<NibbleGroup<true>>(), IN_BYTES = group_kind<ByteGroup>();

// As outputs_product(); rows are floats.
template <class Emit>
inline void group_product(const omni_matrix &a, const void *const *xs, int rows, int64_t begin, int64_t end, Scratch scratch, Emit emit) {
  const GroupKind &kind = a.kind == OMNI_INT8_GROUPS ? IN_BYTES : a.zero_points ? WITH_ZEROS : IN_NIBBLES;
  if (rows <= 4) return outputs_product(kind.few, a, xs, rows, begin, end, emit);
  Floats *sums = scratch.take<Floats>(rows * OUTS);
  float wide[OUTS * 32 * STRETCH];
  int64_t groups = a.in / 32;
  for (int64_t o = begin; o < end; o += OUTS) {
    Outputs outputs = outputs_of(a, o, end);
    for (int i = 0; i < rows * OUTS; i++) sums[i] = Floats{};
    for (int64_t g = 0; g < groups; g += STRETCH) {
      int64_t after = g + STRETCH < groups ? g + STRETCH : groups;
      kind.widen(outputs, g, after, wide);
      for (int row = 0; row < rows; row += 4)
        ADD_STRETCH[rows - row < 4 ? rows - row : 4](outputs, wide, g, after, (const float *const *)xs + row, sums + row * OUTS);
    }
    emit_sums(a, sums, rows, o, end, emit);
  }
}

}  // namespace
