// Products of many rows with a matrix of any kind, panel by panel, and of gates with ups.
#pragma once
#include "integer_lanes.h"

namespace {

// Calls emit(row, values) for each of `rows` rows, with its `count` (at most 16) sums in `c`, [count][stride], in order.
template <class Emit>
inline __attribute__((always_inline)) void emit_rows(const float *c, int64_t stride, int64_t count, int64_t rows, Emit emit) {
#if WIDTH == 16
  if (rows > 2) {
    __m512i v[16];
    __attribute__((aligned(64))) float turned[16][16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) v[i] = i < count ? _mm512_loadu_si512(c + i * stride) : _mm512_setzero_si512();
    transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_store_si512(turned[i], v[i]);
    for (int64_t row = 0; row < rows; row++) emit(row, turned[row]);
    return;
  }
#elif WIDTH == 8
  if (rows > 2) {
    __attribute__((aligned(64))) float turned[8][16];
#pragma GCC unroll 2
    for (int half = 0; half < 16; half += 8) {
      if (half >= count) break;
      __m256 v[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) v[i] = half + i < count ? _mm256_loadu_ps(c + (half + i) * stride) : _mm256_setzero_ps();
      transpose(v);
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) _mm256_store_ps(turned[i] + half, v[i]);
    }
    for (int64_t row = 0; row < rows; row++) emit(row, turned[row]);
    return;
  }
#endif
  for (int64_t row = 0; row < rows; row++) {
    __attribute__((aligned(64))) float values[16];
    for (int64_t o = 0; o < count; o++) values[o] = c[o * stride + row];
    emit(row, values);
  }
}

#if TILES
// How inputs of adjacent outputs are widened, for PARTS tiles of 32 inputs, which have BYTES: each by a call for the `place` of an output in a
// panel, from the address of its weights.
struct WideBytes {
  static constexpr int64_t PARTS = 1, BYTES = 32;

  inline WideBytes(const omni_matrix &) {}
  inline bool begin(int, int64_t) { return true; }
  inline void step(int64_t) {}
  inline __m512i operator()(int, const uint8_t *from, int) const { return pairs_of_bytes((const int8_t *)from); }
  inline void mend(int64_t, uint32_t *) {}
};

// The scales of a panel's outputs, and their zero points.
template <bool ZEROS>
struct WideGroups : WideBytes {
  const bf16 *scales, *firsts[2] = {}, *now[2];
  int64_t groups;

  inline WideGroups(const omni_matrix &a) : WideBytes(a), scales((const bf16 *)a.group_scales), groups(a.in / GROUP) {}
  inline bool begin(int place, int64_t output) {
    if (place % 16 == 0) firsts[place / 16] = scales + (ZEROS ? 2 : 1) * output * groups;
    return true;
  }
  inline void step(int64_t number) {
    now[0] = firsts[0] + number;
    now[1] = firsts[1] + number;
  }
  inline const bf16 *of(int place) const { return now[place / 16] + (ZEROS ? 2 : 1) * (place % 16) * groups; }
};

struct WideByteGroups : WideGroups<false> {
  using WideGroups::WideGroups;
  inline __m512i operator()(int place, const uint8_t *from, int) const { return pairs_of_bytes((const int8_t *)from, widen(*of(place))); }
};

template <bool ZEROS>
struct WideNibbles : WideGroups<ZEROS> {
  static constexpr int64_t BYTES = 16;
  using WideGroups<ZEROS>::WideGroups;
  inline __m512i operator()(int place, const uint8_t *from, int) const {
    const bf16 *scale = this->of(place);
    return pairs_of_nibbles(from, widen(scale[0]), ZEROS ? widen(scale[this->groups]) : 8.0f);
  }
};

// Rare weights of all outputs of a panel are listed by turns; a panel that has more than MOST, or more turns, is widened in another way.
struct WideCodes {
  static constexpr int64_t PARTS = 4, BYTES = 192;
  static constexpr int MOST = 512, TURNS_OF = 32 * PARTS;
  struct Rare {
    uint16_t place, input, value;
    int16_t next;
  };
  const uint32_t *words;
  int64_t out;
  int count = 0;
  int16_t first[MOST];  // of each turn, or -1
  Rare rare[MOST];
  __attribute__((aligned(64))) uint16_t tables[32][32];

  inline WideCodes(const omni_matrix &a) : words((const uint32_t *)a.group_scales), out(a.out) {
    memset(first, -1, (a.in / TURNS_OF < MOST ? a.in / TURNS_OF : MOST) * sizeof(int16_t));
  }
  inline bool begin(int place, int64_t output) {
    _mm512_store_si512(tables[place], code_table(words[output]));
    for (uint32_t i = words[output] >> 8, end = words[output + 1] >> 8; i < end; i++) {
      uint32_t word = words[out + 1 + i], turn = (word >> 16) / TURNS_OF;
      if (count == MOST || turn >= MOST) return false;
      rare[count] = {(uint16_t)place, (uint16_t)((word >> 16) % TURNS_OF), (uint16_t)word, first[turn]};
      first[turn] = (int16_t)count++;
    }
    return true;
  }
  inline void step(int64_t) {}
  inline __m512i operator()(int place, const uint8_t *from, int part) const { return pairs_of_codes(from, part, _mm512_load_si512(tables[place])); }
  inline void mend(int64_t turn, uint32_t *to) {
    for (int i = first[turn]; i >= 0; i = rare[i].next)
      ((uint16_t *)to)[(rare[i].place / 16 * PARTS + rare[i].input / 32) * 512 + rare[i].place % 16 * 32 + rare[i].input % 32] = rare[i].value;
  }
};

// As chunk_sums(), of M = 2 with `more` and V blocks of rows: tiles are widened while those of the turn before are multiplied. `a.in` is a multiple of
// the inputs of a turn. Returns false if it cannot.
template <class Wide, int M, int V>
__attribute__((noinline)) bool turn_sums(const omni_matrix &a, const int64_t *outputs, const int64_t *counts, const uint32_t *x, int64_t block,
                                         uint32_t *buffer, float *c, const char *first, const char *second, int64_t bytes) {
  constexpr int PARTS = Wide::PARTS, SHARE = 16 / PARTS;  // outputs that are widened beside the product of a tile
  constexpr int64_t TILE = 256;                           // words
  Wide wide(a);
  const int64_t turns = a.in / (32 * PARTS), stride = turns * Wide::BYTES;
  const uint8_t *rows[M];
  for (int m = 0; m < M; m++) {
    for (int64_t r = 0; r < counts[m]; r++)
      if (!wide.begin(16 * m + (int)r, outputs[m] + r)) return false;
    rows[m] = (const uint8_t *)a.weight + outputs[m] * stride;
    for (int turn = 0; turn < 2 && counts[m] < 16; turn++) memset(buffer + (M * turn + m) * PARTS * TILE, 0, PARTS * TILE * sizeof(uint32_t));
  }
  // The share of a turn's outputs beside one of its tiles.
  auto widen_share = [&](int64_t turn, int which) {
    uint32_t *to = buffer + turn % 2 * M * PARTS * TILE;
    if (!which) wide.step(turn);
#pragma GCC unroll 2
    for (int m = 0; m < M; m++) {
      const uint8_t *from = rows[m] + turn * Wide::BYTES + which * SHARE * stride;
      auto widen_one = [&](int r) {
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) _mm512_storeu_si512(to + (m * PARTS + part) * TILE + r * 16, wide(16 * m + r, from, part));
        from += stride;
      };
      int begin = which * SHARE, end = begin + SHARE;
      if (end <= counts[m]) {
#pragma GCC unroll 16
        for (int r = 0; r < SHARE; r++) widen_one(begin + r);
      } else {
        for (int r = begin; r < counts[m]; r++) widen_one(r);
      }
    }
    if (which == PARTS - 1) wide.mend(turn, to);
  };
  _tile_zero(0);
  if (V > 1) _tile_zero(1);
  if (M > 1) _tile_zero(2);
  if (M > 1 && V > 1) _tile_zero(3);
  int64_t steps = turns * PARTS, lines = first ? (bytes / 64 + steps - 1) / steps : 0;
  for (int which = 0; which < PARTS; which++) widen_share(0, which);
  for (int64_t turn = 0; turn < turns; turn++) {
    const uint32_t *tiles = buffer + turn % 2 * M * PARTS * TILE;
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++, x += TILE) {
      // Before tiles are loaded: these then read what was stored a turn ago, which is in the cache.
      if (turn + 1 < turns) widen_share(turn + 1, part);
      __asm__ volatile("" ::: "memory");  // tiles are loaded from what was stored
      _tile_loadd(4, tiles + part * TILE, 64);
      _tile_stream_loadd(6, x, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (V > 1) {
        _tile_stream_loadd(7, x + block, 64);
        _tile_dpbf16ps(1, 4, 7);
      }
      if (M > 1) {
        _tile_loadd(5, tiles + (PARTS + part) * TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        if (V > 1) _tile_dpbf16ps(3, 5, 7);
      }
      for (int64_t line = 0; line < lines; line++, first += 64) __builtin_prefetch(first, 0, 2);
      if (M > 1)
        for (int64_t line = 0; line < lines; line++, second += 64) __builtin_prefetch(second, 0, 2);
    }
  }
  _tile_stored(0, c, 128);
  if (V > 1) _tile_stored(1, c + 16, 128);
  if (M > 1) _tile_stored(2, c + 16 * 32, 128);
  if (M > 1 && V > 1) _tile_stored(3, c + 16 * 32 + 16, 128);
  return true;
}

typedef bool (*Turn)(const omni_matrix &a, const int64_t *outputs, const int64_t *counts, const uint32_t *x, int64_t block, uint32_t *buffer, float *c,
                     const char *first, const char *second, int64_t bytes);

template <class Wide>
inline Turn turn_of(bool more, bool two) {
  return more ? (two ? turn_sums<Wide, 2, 2> : turn_sums<Wide, 2, 1>) : (two ? turn_sums<Wide, 1, 2> : turn_sums<Wide, 1, 1>);
}

inline Turn turn_of(const omni_matrix &a, bool more, bool two) {
  if (a.kind == OMNI_CODES) return turn_of<WideCodes>(more, two);
  if (a.kind == OMNI_INT8) return turn_of<WideBytes>(more, two);
  if (a.kind == OMNI_INT8_GROUPS) return turn_of<WideByteGroups>(more, two);
  return a.zero_points ? turn_of<WideNibbles<true>>(more, two) : turn_of<WideNibbles<false>>(more, two);
}

constexpr int64_t CHUNK = 256;  // inputs that are widened at once for few rows: what stays in the first cache beside them

// The sums of `count` outputs and of `more` others (at most 16 each), for one or two blocks of rows: widened and multiplied in turn. `next`:
// the outputs of the next call, as many of each.
inline void chunk_sums(const omni_matrix &a, int64_t output, int64_t count, int64_t other, int64_t more, const Lanes &x, bool two, uint32_t *buffer,
                       float *c, int64_t next) {
  Source source = source_of(a);
  if (a.in && a.in % 32 == 0) {
    int64_t outputs[] = {output, other}, counts[] = {count, more}, bytes = count * source.bytes;
    const char *memory = next ? source.memory + next * source.bytes : nullptr;
    Turn turn = turn_of(a, more, two);
    if (turn(a, outputs, counts, x.block(0), x.steps * W, buffer, c, memory, memory ? memory + (other - output) * source.bytes : nullptr, bytes)) return;
  }
  auto multiply = more ? (two ? tile_panel<2, 2> : tile_panel<2, 1>) : (two ? tile_panel<1, 2> : tile_panel<1, 1>);
  for (int64_t k = 0; k < a.in; k += CHUNK) {
    int64_t size = a.in - k < CHUNK ? a.in - k : CHUNK, steps = words_of(a.kind, size);
    panel_of(a, output, count, buffer, k, size);
    if (more) panel_of(a, other, more, buffer + 16 * steps, k, size);
    int64_t part = count * source.bytes * k / a.in / 64 * 64;
    const char *first = next ? source.memory + next * source.bytes + part : nullptr;
    const char *second = next ? first + (other - output) * source.bytes : nullptr;
    multiply(buffer, buffer + 16 * steps, steps, x.block(0) + k / 2 * W, x.steps * W, steps, c, first, second, count * source.bytes * size / a.in,
             k == 0, k + size >= a.in);
  }
}
#endif

inline Panel any_panel(const omni_matrix &a, int64_t output, int64_t count, uint32_t *buffer) {
#if INTEGER_LANES
  if (in_integers(a)) return integer_panel(a, output, count, buffer);
#endif
  return panel_of(a, output, count, buffer);
}

// c[count][2 * W], the sums of a panel for the rows of one or two blocks from number `b` on.
inline void any_sums(const omni_matrix &a, const Panel &p, int64_t count, const Lanes &x, int64_t b, float *c, const char *next, int64_t bytes) {
  int64_t block = x.steps * W, rows = x.rows - b * W;
#if INTEGER_LANES
  if (in_integers(a)) return integer_sums(a, p, count, x.block(b), block, rows, c, next, bytes);
#endif
  panel_sums(!in_pairs(a.kind), p, count, x.block(b), block, x.steps, rows, c, next, bytes);
}

// Calls emit(row, output, count, values) for `count` (at most 16) adjacent outputs between `begin` and `end` of every row.
template <class Emit>
inline void lane_product(const omni_matrix &a, const Lanes &x, int64_t begin, int64_t end, uint32_t *buffer, Emit emit) {
  __attribute__((aligned(64))) float c[PANEL * 2 * W];
  Source source = source_of(a);
  int64_t blocks = blocks_of_rows(x.rows);
  for (int64_t o = begin; o < end; o += PANEL) {
    int64_t count = end - o < PANEL ? end - o : PANEL, after = end - o - count;
#if TILES
    bool chunks = is_narrow(a.kind) && blocks <= 2;
#else
    constexpr bool chunks = false;
#endif
    Panel panel = chunks ? Panel{buffer, 0} : any_panel(a, o, count, buffer);
    const char *next = after ? source.memory + (o + count) * source.bytes : nullptr;
    int64_t bytes = (after < PANEL ? after : PANEL) * source.bytes;
    for (int64_t b = 0; b < blocks; b += 2) {
      bool two = b + 1 < blocks;
#if TILES
      if (chunks)
        chunk_sums(a, o, count < 16 ? count : 16, o + 16, count > 16 ? count - 16 : 0, x, two, buffer, c, after >= PANEL ? o + PANEL : 0);
      else
#endif
        any_sums(a, panel, count, x, b, c, b ? nullptr : next, bytes);
      for (int64_t part = 0; part < count; part += 16) {
        int64_t outs = count - part < 16 ? count - part : 16;
        scale_sums(a, o + part, outs, c + part * 2 * W);
        for (int64_t i = 0; i < (two ? 2 : 1); i++) {
          int64_t first = (b + i) * W, rows = x.rows - first < W ? x.rows - first : W;
          emit_rows(c + part * 2 * W + i * W, 2 * W, outs, rows, [&](int64_t row, const float *values) { emit(first + row, o + part, outs, values); });
        }
      }
    }
  }
}

// Writes W lanes of `count` adjacent elements from `first` on, c[count][stride], to a block of packed rows. `first` is even.
inline void pack_sums(int64_t kind, const float *c, int64_t stride, int64_t first, int64_t count, uint32_t *block) {
#if PAIRS
  if (!of_floats(kind)) {
    for (int64_t i = 0; i < count; i += 2)
      write(block + (first + i) / 2 * W, pair(read<Floats>(c + i * stride), i + 1 < count ? read<Floats>(c + (i + 1) * stride) : Floats{}));
    return;
  }
#endif
  for (int64_t i = 0; i < count; i++) {
    Floats v = read<Floats>(c + i * stride);
    write(block + (first + i) * W, of_floats(kind) ? v : rounded(v));
  }
}

// Zeros after the last of `size` elements of packed rows.
inline void pack_end(int64_t kind, int64_t size, uint32_t *block) {
  int64_t used = in_pairs(kind) ? (size + 1) / 2 : size;
  memset(block + used * W, 0, (words_of(kind, size) - used) * W * sizeof(uint32_t));
}

// silu(gate) * up of the units of `part` for all rows, packed for the product with `then`; not yet rounded where that is in integers. `a`: gates
// above ups. `part` begins at an even unit. `factors`: of each row, or null.
inline void gated_product(const omni_matrix &a, const Lanes &x, Range part, const omni_matrix &then, uint32_t *to, const float *factors,
                          uint32_t *buffer) {
  __attribute__((aligned(64))) float c[PANEL * 2 * W];
  int64_t units = a.out / 2, blocks = blocks_of_rows(x.rows), out_size = words_of(then.kind, units) * W;
  int64_t kind = in_integers(then) ? (int64_t)OMNI_FLOAT32 : then.kind;
  Source source = source_of(a);
  auto finish = [&](int64_t u, int64_t count, int64_t b) {
    scale_sums(a, u, count, c);
    scale_sums(a, units + u, count, c + UNITS * 2 * W);
    for (int64_t i = 0; i < (b + 1 < blocks ? 2 : 1); i++) {
      for (int64_t o = 0; o < count; o++) {
        float *gate = c + o * 2 * W + i * W;
        Floats active = silu(read<Floats>(gate)) * read<Floats>(gate + UNITS * 2 * W);
        write(gate, factors ? active * read<Floats>(factors + (b + i) * W) : active);
      }
      pack_sums(kind, c + i * W, 2 * W, u, count, to + (b + i) * out_size);
    }
  };
  for (int64_t u = part.begin; u < part.end; u += UNITS) {
    int64_t count = part.end - u < UNITS ? part.end - u : UNITS, after = part.end - u - count;
#if TILES
    if (is_narrow(a.kind) && blocks <= 2) {
      chunk_sums(a, u, count, units + u, count, x, blocks == 2, buffer, c, after >= UNITS ? u + UNITS : 0);
      finish(u, count, 0);
      continue;
    }
#endif
    Panel gates = any_panel(a, u, count, buffer), ups = any_panel(a, units + u, count, buffer + UNITS * x.steps);
    for (int64_t b = 0; b < blocks; b += 2) {
#if TILES
      bool two = b + 1 < blocks;
      int64_t size = x.steps * W;
      if (in_pairs(a.kind) && gates.stride == ups.stride) {
        const char *next = after && !b ? source.memory + (u + UNITS) * source.bytes : nullptr;
        (two ? tile_panel<2, 2> : tile_panel<2, 1>)(gates.words, ups.words, gates.stride, x.block(b), size, x.steps, c, next,
                                                    next ? next + units * source.bytes : nullptr, (after < UNITS ? after : UNITS) * source.bytes, true, true);
      } else
#endif
      {
        const char *next = after && !b ? source.memory + (u + UNITS) * source.bytes : nullptr;
        int64_t bytes = (after < UNITS ? after : UNITS) * source.bytes;
        any_sums(a, gates, count, x, b, c, next, bytes);
        any_sums(a, ups, count, x, b, c + UNITS * 2 * W, next ? next + units * source.bytes : nullptr, bytes);
      }
      finish(u, count, b);
    }
  }
  if (part.end == units && !in_integers(then))
    for (int64_t b = 0; b < blocks; b++) pack_end(kind, units, to + b * out_size);
}

}  // namespace
