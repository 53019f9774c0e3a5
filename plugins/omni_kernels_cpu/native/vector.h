// Vectors of the instruction set that this file is compiled for, by the compiler's vector extension. Everything is in an unnamed
// namespace, and no header of the C++ library is used: the linker must not share a function between instruction sets.
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define WIDTH 16
#include <immintrin.h>
#elif defined(__AVX2__)
#define WIDTH 8
#include <immintrin.h>
#else
#define WIDTH 4
#endif

namespace {

constexpr int W = WIDTH;
typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH)));
typedef int8_t Bytes __attribute__((vector_size(WIDTH)));
typedef uint16_t bf16;

template <class V>
inline V read(const void *from) {
  V value;
  memcpy(&value, from, sizeof value);
  return value;
}

template <class V>
inline void write(void *to, V value) {
  memcpy(to, &value, sizeof value);
}

inline Floats broadcast(float value) { return value - Floats{}; }

// Compilers take several instructions for a conversion to vectors of 256 bits, which are one.
inline Floats widen(Halves values) {
#if WIDTH == 8
  return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)values), 16);
#else
  return (Floats)(__builtin_convertvector(values, Words) << 16);
#endif
}

inline Floats load_bytes(const int8_t *from) {
#if WIDTH == 16
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif WIDTH == 8
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
  return __builtin_convertvector(__builtin_convertvector(read<Bytes>(from), Ints), Floats);
#endif
}

inline Halves narrow(Floats values) {  // to the nearest bfloat16, ties to even; NaN stays NaN
  Words bits = (Words)values;
  Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  Words nan = (bits >> 16) | 0x40u;
  return __builtin_convertvector(values == values ? rounded : nan, Halves);
}

// widen(narrow(values)), without the way through 16 bits.
inline Floats rounded(Floats values) {
  Words bits = (Words)values, up = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (Floats)((values == values ? up : bits | 0x400000u) & 0xffff0000u);
}

inline float widen(bf16 value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, 4);
  return wide;
}

inline bf16 narrow(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return value == value ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : (bits >> 16) | 0x40u;
}

// Elements of a tensor as float32.
template <class T>
struct Element;

template <>
struct Element<float> {
  static inline Floats load(const float *from) { return read<Floats>(from); }
  static inline void store(float *to, Floats value) { write(to, value); }
  static inline float one(float value) { return value; }
  static inline float round(float value) { return value; }
};

template <>
struct Element<bf16> {
  static inline Floats load(const bf16 *from) { return widen(read<Halves>(from)); }
  static inline void store(bf16 *to, Floats value) { write(to, narrow(value)); }
  static inline float one(bf16 value) { return widen(value); }
  static inline bf16 round(float value) { return narrow(value); }
};

template <class T>
inline Floats load_part(const T *from, int64_t count) {
  T padded[W] = {};
  memcpy(padded, from, count * sizeof(T));
  return Element<T>::load(padded);
}

template <class T>
inline void store_part(T *to, Floats value, int64_t count) {
  T padded[W];
  Element<T>::store(padded, value);
  memcpy(to, padded, count * sizeof(T));
}

// Bytes from the weights that are multiplied to those that are fetched: where several outputs or rows hide the order of the memory from the
// processor, and where it foresees the order by itself, and fetches far ahead would only take its place. On Intel's, which have
// tiles, far ahead is faster there too.
#if defined(__AMX_TILE__)
constexpr int64_t AHEAD = 8192, NEAR = AHEAD;
#else
constexpr int64_t AHEAD = 8192, NEAR = 1024;
#endif

// Fetches a line of weights to the second cache: those of the first one's fetches that can be under way at once are too few.
inline void fetch(const void *memory) { __builtin_prefetch(memory, 0, 2); }

#define FOR_VECTORS(i, size) for (int64_t i = 0; i < (size); i += W)

template <class T>
inline Floats load_at(const T *from, int64_t i, int64_t size) {
  return i + W <= size ? Element<T>::load(from + i) : load_part(from + i, size - i);
}

template <class T>
inline void store_at(T *to, int64_t i, int64_t size, Floats value) {
  if (i + W <= size)
    Element<T>::store(to + i, value);
  else
    store_part(to + i, value, size - i);
}

template <class T>
inline void to_floats(const T *from, int64_t size, float *to) {
  FOR_VECTORS(i, size) store_at(to, i, size, load_at(from, i, size));
}

template <class T>
inline void from_floats(const float *from, int64_t size, T *to) {
  FOR_VECTORS(i, size) store_at(to, i, size, load_at(from, i, size));
}

typedef float Four __attribute__((vector_size(16)));

// A vector's sums of every fourth lane, added in halves.
inline Four fold(Floats v) {
#if WIDTH == 16
  typedef float Eight __attribute__((vector_size(32)));
  Eight h = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#elif WIDTH == 8
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
  return v;
#endif
}

inline float sum(Floats v) {
  Four q = fold(v);
  return (q[0] + q[2]) + (q[1] + q[3]);
}

// The sums of four vectors, each added in the same order as by sum().
inline Four sums_of(Floats a, Floats b, Floats c, Floats d) {
  Four p = fold(a), q = fold(b), r = fold(c), s = fold(d);
  Four first = __builtin_shufflevector(p, q, 0, 4, 1, 5) + __builtin_shufflevector(p, q, 2, 6, 3, 7);
  Four second = __builtin_shufflevector(r, s, 0, 4, 1, 5) + __builtin_shufflevector(r, s, 2, 6, 3, 7);
  return __builtin_shufflevector(first, second, 0, 1, 4, 5) + __builtin_shufflevector(first, second, 2, 3, 6, 7);
}

inline Floats exponential(Floats x) {
  const Floats low = broadcast(-87.3f), high = broadcast(88.37f), shift = broadcast(12582912.0f);
  x = x < low ? low : x;  // NaN fails both comparisons and stays
  x = x > high ? high : x;
  Floats t = x * 1.44269504088896341f + shift;
  Ints n = (Ints)t - (Ints)shift;
  Floats whole = t - shift;
  Floats r = x - whole * 0.693359375f;
  r = r + whole * 2.12194440e-4f;
  Floats p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * (Floats)((n + 127) << 23);
}

inline Floats silu(Floats x) { return x / (1.0f + exponential(-x)); }

}  // namespace
