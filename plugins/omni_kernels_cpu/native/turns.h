// Products of few rows with weights that are widened or split: by tiles, while those of the turn before are multiplied.
#pragma once
#include "tiles.h"

#if TILES
namespace {

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
  Wide wide(a);
  const int64_t turns = a.in / (32 * PARTS), stride = turns * Wide::BYTES;
  const uint8_t *rows[M];
  for (int m = 0; m < M; m++) {
    for (int64_t r = 0; r < counts[m]; r++)
      if (!wide.begin(16 * m + (int)r, outputs[m] + r)) return false;
    rows[m] = (const uint8_t *)a.weight + outputs[m] * stride;
    for (int turn = 0; turn < 2 && counts[m] < 16; turn++) memset(buffer + (M * turn + m) * PARTS * TILE_WORDS, 0, PARTS * TILE_WORDS * sizeof(uint32_t));
  }
  // The share of a turn's outputs beside one of its tiles.
  auto widen_share = [&](int64_t turn, int which) {
    uint32_t *to = buffer + turn % 2 * M * PARTS * TILE_WORDS;
    if (!which) wide.step(turn);
#pragma GCC unroll 2
    for (int m = 0; m < M; m++) {
      const uint8_t *from = rows[m] + turn * Wide::BYTES + which * SHARE * stride;
      auto widen_one = [&](int r) {
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) _mm512_storeu_si512(to + (m * PARTS + part) * TILE_WORDS + r * 16, wide(16 * m + r, from, part));
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
    const uint32_t *tiles = buffer + turn % 2 * M * PARTS * TILE_WORDS;
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++, x += TILE_WORDS) {
      // Before tiles are loaded: these then read what was stored a turn ago, which is in the cache.
      if (turn + 1 < turns) widen_share(turn + 1, part);
      __asm__ volatile("" ::: "memory");  // tiles are loaded from what was stored
      _tile_loadd(4, tiles + part * TILE_WORDS, 64);
      _tile_stream_loadd(6, x, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (V > 1) {
        _tile_stream_loadd(7, x + block, 64);
        _tile_dpbf16ps(1, 4, 7);
      }
      if (M > 1) {
        _tile_loadd(5, tiles + (PARTS + part) * TILE_WORDS, 64);
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

// As turn_sums(), of weights in float32, which are split.
template <int M, int V>
__attribute__((noinline)) void split_sums(const omni_matrix &a, const int64_t *outputs, const int64_t *counts, const uint32_t *x, int64_t block,
                                          uint32_t *buffer, Ahead ahead) {
  constexpr int STEPS = 6, SHARE = (16 * M + STEPS - 1) / STEPS;  // products of parts, and outputs that are split beside each
  const int64_t turns = (a.in + 31) / 32, steps = turns * STEPS, lines = ahead.first && steps ? (ahead.bytes / 64 + steps - 1) / steps : 0;  // as in tile_panel()
  const char *first = ahead.first, *second = ahead.second;
  for (int m = 0; m < M; m++)
    for (int turn = 0; turn < 2 && counts[m] < 16; turn++) memset(buffer + (M * turn + m) * SPLIT * TILE_WORDS, 0, SPLIT * TILE_WORDS * sizeof(uint32_t));
  const float *rows[M];
  for (int m = 0; m < M; m++) rows[m] = (const float *)a.weight + outputs[m] * a.in;
  // SHARE outputs of a turn: the first ones of 16 * M, then those that follow.
  auto split_share = [&](int64_t turn, int which) __attribute__((always_inline)) {
    if (turn == turns) return;
    int64_t element = 32 * turn;
    uint32_t *tiles = buffer + turn % 2 * M * SPLIT * TILE_WORDS;
#pragma GCC unroll 6
    for (int i = 0; i < SHARE; i++) {
      int r = which * SHARE + i, m = M > 1 && r >= 16, output = r - 16 * m;
      if (r >= 16 * M || output >= counts[m]) continue;
      __m512i parts[SPLIT];
      split_pairs(rows[m] + output * a.in, a.in, element, parts);
      uint32_t *to = tiles + m * SPLIT * TILE_WORDS + output * 16;
#pragma GCC unroll 3
      for (int part = 0; part < SPLIT; part++) _mm512_store_si512(to + part * TILE_WORDS, parts[part]);
    }
  };
  _tile_zero(0);
  if (V > 1) _tile_zero(1);
  if (M > 1) _tile_zero(2);
  if (M > 1 && V > 1) _tile_zero(3);
  for (int which = 0; which < STEPS; which++) split_share(0, which);
  for (int64_t turn = 0; turn < turns; turn++, x += SPLIT * TILE_WORDS) {
    const uint32_t *tiles = buffer + turn % 2 * M * SPLIT * TILE_WORDS;
    auto add = [&](int which, int weights, int inputs) __attribute__((always_inline)) {
      split_share(turn + 1, which);
      __asm__ volatile("" ::: "memory");  // tiles are loaded from what was stored
      _tile_loadd(4, tiles + weights * TILE_WORDS, 64);
      if (M > 1) _tile_loadd(5, tiles + (SPLIT + weights) * TILE_WORDS, 64);
      _tile_stream_loadd(6, x + inputs * TILE_WORDS, 64);
      if (V > 1) _tile_stream_loadd(7, x + block + inputs * TILE_WORDS, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (V > 1) _tile_dpbf16ps(1, 4, 7);
      if (M > 1) _tile_dpbf16ps(2, 5, 6);
      if (M > 1 && V > 1) _tile_dpbf16ps(3, 5, 7);
      for (int64_t line = 0; line < lines; line++, first += 64) __builtin_prefetch(first, 0, 2);
      for (int64_t line = 0; second && line < lines; line++, second += 64) __builtin_prefetch(second, 0, 2);
    };
    add(0, 0, 0);  // in the order of tile_panel()
    add(1, 1, 0);
    add(2, 2, 0);
    add(3, 1, 1);
    add(4, 0, 1);
    add(5, 0, 2);
  }
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
  if (a.kind == OMNI_FLOAT32) {
    int64_t outputs[] = {output, other}, counts[] = {count, more};
    const char *memory = next ? source.memory + next * source.bytes : nullptr;
    auto multiply = more ? (two ? split_sums<2, 2> : split_sums<2, 1>) : (two ? split_sums<1, 2> : split_sums<1, 1>);
    multiply(a, outputs, counts, x.block(0), x.steps * W, buffer, {memory, memory && more ? memory + (other - output) * source.bytes : nullptr, count * source.bytes});
    return store_tiles(more, two, c);
  }
  if (a.in && a.in % 32 == 0) {
    int64_t outputs[] = {output, other}, counts[] = {count, more}, bytes = count * source.bytes;
    const char *memory = next ? source.memory + next * source.bytes : nullptr;
    Turn turn = turn_of(a, more, two);
    if (turn(a, outputs, counts, x.block(0), x.steps * W, buffer, c, memory, memory ? memory + (other - output) * source.bytes : nullptr, bytes)) return;
  }
  TilePanel multiply = tile_panel_of<PLAIN>(more, two);
  for (int64_t k = 0; k < a.in; k += CHUNK) {
    int64_t size = a.in - k < CHUNK ? a.in - k : CHUNK, steps = words_of(a.kind, size);
    panel_of(a, output, count, buffer, k, size);
    if (more) panel_of(a, other, more, buffer + 16 * steps, k, size);
    Ahead ahead;
    if (next) ahead.first = source.memory + next * source.bytes + count * source.bytes * k / a.in / 64 * 64;
    if (next && more) ahead.second = ahead.first + (other - output) * source.bytes;
    ahead.bytes = count * source.bytes * size / a.in;
    multiply(buffer, buffer + 16 * steps, steps, 16, x.block(0) + k / 2 * W, x.steps * W, steps / 16, ahead, k == 0);
  }
  store_tiles(more, two, c);
}

}  // namespace
#endif
