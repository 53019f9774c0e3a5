// Attention of one decode row's query heads that share a key head, over the slots of its positions in the cache.
#pragma once
#include "team.h"
#include "vector.h"

namespace {

constexpr int MOST_HEADS = 4;  // query heads that are computed together
template <int G>
constexpr int POSITIONS = 4 / G;  // positions whose scores are: four sums are added across lanes together

struct Run {
  int64_t slot, length;
};

// Slots of positions in blocks of a page table, or given one by one: the run of adjacent slots from a position on.
struct Pages {
  const int32_t *pages;
  int64_t block_size;
  inline Run operator()(int64_t position, int64_t count) const {
    int64_t page = position / block_size, within = position - page * block_size, left = block_size - within;
    return {(int64_t)pages[page] * block_size + within, left < count - position ? left : count - position};
  }
};

struct Slots {
  const int64_t *slots;
  inline Run operator()(int64_t position, int64_t) const { return {slots[position], 1}; }
};

// A run is fetched while the one before it is read: runs are anywhere in the memory, and the processor does not foresee them.
template <class T>
inline __attribute__((always_inline)) void fetch_row(const T *row, int64_t width) {
  for (int64_t i = 0; i < width; i += 64 / (int64_t)sizeof(T)) fetch(row + i);
}

// Scores of G query heads at P positions, whose keys are `stride` apart: scores[g * count + p].
template <class T, int G, int P>
inline __attribute__((always_inline)) void scores_of(const float *query, int64_t width, const T *key, int64_t stride, float *scores, int64_t count) {
  Floats sums[P * G] = {};
  int64_t i = 0;
  for (; i + W <= width; i += W) {
    Floats q[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) q[g] = Element<float>::load(query + g * width + i);
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
      Floats k = Element<T>::load(key + p * stride + i);
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) sums[p * G + g] += k * q[g];
    }
  }
  if (i < width) {
    for (int p = 0; p < P; p++) {
      Floats k = load_part(key + p * stride + i, width - i);
      for (int g = 0; g < G; g++) sums[p * G + g] += k * load_part(query + g * width + i, width - i);
    }
  }
  constexpr int FOURS = P * G / 4 * 4;
#pragma GCC unroll 4
  for (int n = 0; n < FOURS; n += 4) {
    Four four = sums_of(sums[n], sums[n + 1], sums[n + 2], sums[n + 3]);
    for (int j = 0; j < 4; j++) scores[(n + j) % G * count + (n + j) / G] = four[j];
  }
#pragma GCC unroll 4
  for (int n = FOURS; n < P * G; n++) scores[n % G * count + n / G] = sum(sums[n]);
}

// Scores to weights that sum to 1.
inline void softmax(float *scores, int64_t count) {
  Floats most = broadcast(-__builtin_inff());
  FOR_VECTORS(i, count) {
    Floats v = i + W <= count ? load_at(scores, i, count) : broadcast(scores[i]);
    most = v > most ? v : most;
  }
  float largest = most[0];
  for (int lane = 1; lane < W; lane++) largest = most[lane] > largest ? most[lane] : largest;
  for (int64_t i = count / W * W; i < count; i++) largest = scores[i] > largest ? scores[i] : largest;
  Floats total = {};
  FOR_VECTORS(i, count) {
    Floats e = exponential(load_at(scores, i, count) - largest);
    store_at(scores, i, count, e);
    total += load_at(scores, i, count);  // zeros after the last
  }
  float scale = 1.0f / sum(total);
  FOR_VECTORS(i, count) store_at(scores, i, count, load_at(scores, i, count) * scale);
}

template <class T, int G, int V, class Places>
inline __attribute__((always_inline)) void mix(const float *weights, int64_t count, const T *values, int64_t stride, Places place,
                                               float *output, int64_t width) {
  Floats sums[G][V] = {};
  for (int64_t p = 0; p < count;) {
    Run run = place(p, count);
    int64_t after = p + run.length < count ? place(p + run.length, count).slot : run.slot;
    const T *value = values + run.slot * stride, *next = values + after * stride;
    for (int64_t end = p + run.length; p < end; p++, value += stride, next += stride) {
      fetch_row(next, V * W);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        Floats each = Element<T>::load(value + v * W);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) sums[g][v] += each * weights[g * count + p];
      }
    }
  }
  for (int g = 0; g < G; g++)
    for (int v = 0; v < V; v++) Element<float>::store(output + g * width + v * W, sums[g][v]);
}

template <class T, int G, class Places>
inline void mix_all(const float *weights, int64_t count, const T *values, int64_t stride, Places place, float *output, int64_t width) {
  int64_t d = 0;
  for (; d + 4 * W <= width; d += 4 * W) mix<T, G, 4>(weights, count, values + d, stride, place, output + d, width);
  for (; d + W <= width; d += W) mix<T, G, 1>(weights, count, values + d, stride, place, output + d, width);
  for (; d < width; d++)
    for (int g = 0; g < G; g++) {
      float total = 0;
      for (int64_t p = 0; p < count; p++) total += weights[g * count + p] * Element<T>::one(values[place(p, count).slot * stride + d]);
      output[g * width + d] = total;
    }
}

template <class T, int G, class Places>
inline void attend_heads(const float *query, int64_t width, const T *keys, const T *values, int64_t stride, Places place, int64_t count,
                         float *scores, float *output) {
  constexpr int P = POSITIONS<G>;
  for (int64_t p = 0; p < count;) {
    Run run = place(p, count);
    int64_t end = p + run.length;
    const T *key = keys + run.slot * stride, *next = end < count ? keys + place(end, count).slot * stride : values + place(0, count).slot * stride;
    for (; p + P <= end; p += P, key += P * stride, next += P * stride) {
      for (int i = 0; i < P; i++) fetch_row(next + i * stride, width);
      scores_of<T, G, P>(query, width, key, stride, scores + p, count);
    }
    for (; p < end; p++, key += stride, next += stride) {
      fetch_row(next, width);
      scores_of<T, G, 1>(query, width, key, stride, scores + p, count);
    }
  }
  for (int g = 0; g < G; g++) softmax(scores + g * count, count);
  mix_all<T, G>(scores, count, values, stride, place, output, width);
}

// Attends with `heads` query heads, [heads, width] and already scaled, to one key head; `scores` has MOST_HEADS * count floats.
template <class T, class Places>
inline void attend(const float *query, int64_t heads, int64_t width, const T *keys, const T *values, int64_t stride, Places place,
                   int64_t count, float *scores, float *output) {
  int64_t head = 0;
  for (; WIDTH == 16 && head + 4 <= heads; head += 4)
    attend_heads<T, 4>(query + head * width, width, keys, values, stride, place, count, scores, output + head * width);
  for (; head + 2 <= heads; head += 2)
    attend_heads<T, 2>(query + head * width, width, keys, values, stride, place, count, scores, output + head * width);
  if (head < heads) attend_heads<T, 1>(query + head * width, width, keys, values, stride, place, count, scores, output + head * width);
}

template <class T>
void attention(const omni_attention *a, const omni_team *team) {
  int64_t group = a->heads / a->kv_heads, width = a->head_dim, stride = a->kv_heads * width;
  Range mine = share(a->rows * a->kv_heads, 1, team);
  Scratch own{team->own};
  float *query = own.take<float>(group * width), *output = own.take<float>(group * width);
  for (int64_t task = mine.begin; task < mine.end; task++) {
    int64_t row = task / a->kv_heads, head = task % a->kv_heads, offset = (row * a->heads + head * group) * width;
    to_floats((const T *)a->query + offset, group * width, query);
    for (int64_t i = 0; i < group * width; i++) query[i] *= (float)a->scale;
    attend(query, group, width, (const T *)a->keys + head * width, (const T *)a->values + head * width, stride,
           Slots{a->slots + row * a->slot_stride}, a->lengths[row], (float *)own.next, output);
    from_floats(output, group * width, (T *)a->output + offset);
  }
}

}  // namespace
