// Products of few rows with a row-major matrix. A sum over the inputs is taken in one order, whatever the number of rows, of threads
// and the place of a row, so that a row's result does not depend on the batch.
#pragma once
#include "group_products.h"
#include "lane_products.h"

namespace {

// How a kind of weights is read, and the inputs that go with it. A product of one step of elements is added to an accumulator.
struct Float32 {
  typedef float Weight;
  typedef float Input;
  typedef Floats Vector;
  static constexpr int STEP = W;
  static inline Vector weight(const Weight *w) { return read<Floats>(w); }
  static inline Vector input(const Input *x) { return read<Floats>(x); }
  static inline Floats add(Floats sum, Vector w, Vector x) { return sum + w * x; }
};

// Weights in bfloat16 with the inputs and the order of Float32, and its bits.
struct Float32Halves {
  typedef bf16 Weight;
  typedef float Input;
  typedef Floats Vector;
  static constexpr int STEP = W;
  static inline Vector weight(const Weight *w) { return widen(read<Halves>(w)); }
  static inline Vector input(const Input *x) { return read<Floats>(x); }
  static inline Floats add(Floats sum, Vector w, Vector x) { return sum + w * x; }
};

#if defined(__AVX512BF16__)
struct BFloat16 {
  typedef bf16 Weight;
  typedef bf16 Input;
  typedef __m512i Vector;
  static constexpr int STEP = 2 * W;
  static inline Vector weight(const Weight *w) { return read<__m512i>(w); }
  static inline Vector input(const Input *x) { return read<__m512i>(x); }
  static inline Floats add(Floats sum, Vector w, Vector x) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
  }
};
#else
typedef Float32Halves BFloat16;
#endif

struct Int8 {
  typedef int8_t Weight;
  typedef float Input;
  typedef Floats Vector;
  static constexpr int STEP = W;
  static inline Vector weight(const Weight *w) { return load_bytes(w); }
  static inline Vector input(const Input *x) { return read<Floats>(x); }
  static inline Floats add(Floats sum, Vector w, Vector x) { return sum + w * x; }
};

// The inputs of a product with weights of `kind`: float32 as they are, else rounded to bfloat16. `buffer` has `size` floats.
inline const void *prepare(int64_t kind, const float *x, int64_t size, float *buffer) {
  if (of_floats(kind)) return x;
#if defined(__AVX512BF16__)
  if (kind == OMNI_BFLOAT16 || kind == OMNI_CODES) {
    FOR_VECTORS(i, size) store_at((bf16 *)buffer, i, size, load_at(x, i, size));
    return buffer;
  }
#endif
  FOR_VECTORS(i, size) store_at(buffer, i, size, rounded(load_at(x, i, size)));
  return buffer;
}

// Outputs that are summed side by side. Of one row a single output, so that weights are read in the order of the memory, unless a step reads so
// little that its sum waits for itself; of more rows as few as read a line of weights per step. As many as the registers hold, so that inputs are
// read once for all of them, where the weights are `near`, in the first cache.
template <class L>
constexpr int side_by_side(int outputs, int rows, bool near) {
  constexpr int bytes = L::STEP * (int)sizeof(typename L::Weight);
  int some = near ? outputs : rows == 1 && bytes >= 16 ? 1 : 64 / bytes;
  if (some > outputs) some = outputs;
  while (some > 1 && some * rows > WIDTH) some /= 2;
  return some > 1 ? some : 1;
}

// R outputs of M rows: out[r * M + m]. `w` is the first output's row of the matrix.
template <class L, int R, int M, bool NEAR_BY>
__attribute__((noinline)) void block(const void *w, int64_t size, const void *const *xs, float *out) {
  typedef typename L::Weight Weight;
  typedef typename L::Input Input;
  constexpr int S = side_by_side<L>(R, M, NEAR_BY);
  constexpr int64_t ahead = S == 1 && M == 1 ? NEAR : AHEAD;
  Floats sums[R * M] = {};
  const Input *x[M];
  for (int m = 0; m < M; m++) x[m] = (const Input *)xs[m];
#pragma GCC unroll 8
  for (int first = 0; first < R; first += S) {
    const Weight *from = (const Weight *)w + first * size;
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + L::STEP <= size; i += L::STEP) {
      if (!NEAR_BY) fetch((const char *)(from + S * i) + ahead);
      typename L::Vector inputs[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) inputs[m] = L::input(x[m] + i);
#pragma GCC unroll 4
      for (int s = 0; s < S; s++) {
        typename L::Vector weights = L::weight(from + s * size + i);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) sums[(first + s) * M + m] = L::add(sums[(first + s) * M + m], weights, inputs[m]);
      }
    }
    if (i == size) continue;
    typename L::Vector inputs[M];  // the last part of a step, with zeros after it on both sides
    for (int m = 0; m < M; m++) {
      Input part[L::STEP] = {};
      memcpy(part, x[m] + i, (size - i) * sizeof(Input));
      inputs[m] = L::input(part);
    }
#pragma GCC unroll 4
    for (int s = 0; s < S; s++) {
      Weight part[L::STEP] = {};
      memcpy(part, from + s * size + i, (size - i) * sizeof(Weight));
      typename L::Vector weights = L::weight(part);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) sums[(first + s) * M + m] = L::add(sums[(first + s) * M + m], weights, inputs[m]);
    }
  }
  constexpr int FOURS = R * M / 4 * 4;
#pragma GCC unroll 4
  for (int i = 0; i < FOURS; i += 4) write(out + i, sums_of(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
#pragma GCC unroll 4
  for (int i = FOURS; i < R * M; i++) out[i] = sum(sums[i]);
}

typedef void (*Block)(const void *w, int64_t size, const void *const *xs, float *out);
constexpr int MANY = 4;  // outputs of a block, whose sums are added across lanes together

// The blocks of one kind of weights, by the number of rows: of MANY outputs, first and again for more rows, and of one.
struct Blocks {
  Block many[5], again[5], one[5];
  int64_t bytes;
};

template <class L>
constexpr Blocks blocks_of() {
  return {{nullptr, block<L, MANY, 1, false>, block<L, MANY, 2, false>, block<L, MANY, 3, false>, block<L, MANY, 4, false>},
          {nullptr, block<L, MANY, 1, true>, block<L, MANY, 2, true>, block<L, MANY, 3, true>, block<L, MANY, 4, true>},
          {nullptr, block<L, 1, 1, false>, block<L, 1, 2, false>, block<L, 1, 3, false>, block<L, 1, 4, false>},
          sizeof(typename L::Weight)};
}

constexpr Blocks FLOAT32_HALVES = blocks_of<Float32Halves>();
constexpr Blocks BLOCKS[] = {blocks_of<Float32>(), blocks_of<BFloat16>(), blocks_of<Int8>()};  // by kind

#if INTEGER_LANES
// As integer_product(), bit for bit, with memory for (rows + W) * in words and those of panel_words().
template <class Emit>
inline void many_integers(const omni_matrix &a, const void *const *xs, int rows, int64_t begin, int64_t end, Scratch scratch, Emit emit) {
  int64_t blocks = blocks_of_rows(rows), steps = words_of(a.kind, a.in);
  uint32_t *packed = scratch.take<uint32_t>(blocks * steps * W), *buffer = scratch.take<uint32_t>(panel_words(a.kind, a.in));
  for (int64_t b = 0; b < blocks; b++) pack_integers(a.kind, a.in, xs + b * W, rows - b * W < W ? rows - b * W : W, packed + b * steps * W);
  lane_product(a, {packed, rows, steps}, begin, end, buffer, [&](int64_t row, int64_t o, int64_t count, const float *values) {
    for (int64_t i = 0; i < count; i++) emit((int)row, o + i, values[i]);
  });
}
#endif

// Rows that are multiplied faster as vectors of rows, by kind: products with 4-bit weights twice as fast, with 8-bit weights a little.
inline int many_rows(int64_t kind) { return kind == OMNI_INT4 ? W - 1 : 3 * W; }

// Calls emit(row, output, value) for a block's outputs of every row. `w`: weights of the first one.
template <class Emit>
inline void block_product(const Blocks &blocks, const omni_matrix &a, const void *w, const void *const *xs, int rows, int64_t o, int outputs, bool near,
                          Emit emit) {
  for (int row = 0; row < rows;) {
    int some = rows - row < 4 ? rows - row : 4;
    float out[16];
    (outputs == 1 ? blocks.one : row || near ? blocks.again : blocks.many)[some](w, a.in, xs + row, out);
    for (int r = 0; r < outputs; r++) {
      float scale = a.scales ? a.scales[o + r] : 1.0f, bias = a.bias ? a.bias[o + r] : 0.0f;
      for (int m = 0; m < some; m++) emit(row + m, o + r, a.scales || a.bias ? out[r * some + m] * scale + bias : out[r * some + m]);
    }
    row += some;
  }
}

// As product(), of codes, which are widened for all rows. Bit for bit as of the bfloat16 weights that they stand for.
template <class Emit>
inline void code_product(const omni_matrix &a, const void *const *xs, int rows, int64_t begin, int64_t end, Scratch scratch, Emit emit) {
  uint32_t *wide = scratch.take<uint32_t>(MANY * a.in);
  int64_t stride = words_of(a.kind, a.in);
  for (int64_t o = begin; o < end;) {
    int outputs = o + MANY <= end ? MANY : 1;
    for (int r = 0; r < outputs; r++) widen_codes(a, o + r, 0, a.in, wide + r * stride);
    block_product(BLOCKS[PAIRS ? OMNI_BFLOAT16 : OMNI_FLOAT32], a, wide, xs, rows, o, outputs, true, emit);
    o += outputs;
  }
}

// Calls emit(row, output, value) for the outputs from `begin` to `end` of every row. `xs` come from prepare(), or of integers from
// prepare_units() or prepare_bytes().
template <class Emit>
inline void product(const omni_matrix &a, const void *const *xs, int rows, int64_t begin, int64_t end, Scratch scratch, Emit emit) {
  if (multiplies_integers(a)) {
#if INTEGER_LANES
    if (rows >= many_rows(a.kind)) return many_integers(a, xs, rows, begin, end, scratch, emit);
#endif
    return integer_product(a, xs, rows, begin, end, emit);
  }
  if (a.kind == OMNI_CODES) return code_product(a, xs, rows, begin, end, scratch, emit);
  if (a.group_scales) return group_product(a, xs, rows, begin, end, scratch, emit);
  const Blocks &blocks = a.kind == OMNI_FLOAT32_HALVES ? FLOAT32_HALVES : BLOCKS[a.kind];
  for (int64_t o = begin; o < end;) {
    int outputs = o + MANY <= end ? MANY : 1;
    block_product(blocks, a, (const char *)a.weight + o * a.in * blocks.bytes, xs, rows, o, outputs, false, emit);
    o += outputs;
  }
}

}  // namespace
