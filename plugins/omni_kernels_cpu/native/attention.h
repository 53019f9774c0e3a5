// Attention of one decode row: query heads over the slots of its positions in the cache. All key heads of a run of positions are read
// together, so that the cache is read in the order of the memory.
#pragma once
#include "team.h"
#include "vector.h"

namespace {

template <int N>
struct Constant {
  static constexpr int value = N;
};
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
  static constexpr int64_t MOST = 16;  // of a run
  const int64_t *slots;
  inline Run operator()(int64_t position, int64_t count) const {
    int64_t length = 1;
    while (length < MOST && position + length < count && slots[position + length] == slots[position] + length) length++;
    return {slots[position], length};
  }
};

// The run after the one that is read, whose lines are fetched meanwhile in the order of the memory: runs are anywhere, and the processor does
// not foresee them.
template <class T>
struct Following {
  const T *row;
  int64_t size, stride, at;
  inline __attribute__((always_inline)) void fetch_some(int64_t count) {
    constexpr int64_t LINE = 64 / (int64_t)sizeof(T);
    for (int64_t i = 0; i < count; i += LINE) {
      fetch(row + at);
      at += LINE;
      if (at < size) continue;
      at = 0;
      row += stride;
    }
  }
};

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

// Scores of G query heads at a run of positions: scores[g * count + p]. The first heads of a key head fetch what follows.
template <class T, int G>
inline void scores_of_run(const float *query, int64_t width, const T *key, int64_t stride, int64_t length, float *scores, int64_t count,
                          Following<T> *next) {
  constexpr int P = POSITIONS<G>;
  int64_t p = 0;
  for (; p + P <= length; p += P, key += P * stride) {
    if (next) next->fetch_some(P * width);
    scores_of<T, G, P>(query, width, key, stride, scores + p, count);
  }
  for (; p < length; p++, key += stride) {
    if (next) next->fetch_some(width);
    scores_of<T, G, 1>(query, width, key, stride, scores + p, count);
  }
}

// Adds the values of a run of positions, V vectors of each, to `output`.
template <class T, int G, int V>
inline __attribute__((always_inline)) void mix(const float *weights, int64_t count, const T *value, int64_t stride, int64_t length, float *output,
                                               int64_t width, Following<T> *next) {
  Floats sums[G][V];
#pragma GCC unroll 4
  for (int g = 0; g < G; g++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sums[g][v] = Element<float>::load(output + g * width + v * W);
  for (int64_t p = 0; p < length; p++, value += stride) {
    if (next) next->fetch_some(V * W);
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      Floats each = Element<T>::load(value + v * W);
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) sums[g][v] += each * weights[g * count + p];
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; g++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) Element<float>::store(output + g * width + v * W, sums[g][v]);
}

template <class T, int G>
inline void mix_run(const float *weights, int64_t count, const T *value, int64_t stride, int64_t length, float *output, int64_t width,
                    Following<T> *next) {
  int64_t d = 0;
  for (; d + 4 * W <= width; d += 4 * W) mix<T, G, 4>(weights, count, value + d, stride, length, output + d, width, next);
  for (; d + W <= width; d += W) mix<T, G, 1>(weights, count, value + d, stride, length, output + d, width, next);
  for (; d < width; d++)
    for (int g = 0; g < G; g++)
      for (int64_t p = 0; p < length; p++) output[g * width + d] += weights[g * count + p] * Element<T>::one(value[p * stride + d]);
}

// Calls each(heads, first head) for the query heads of a key head, as many at a time as the registers hold; `heads` is a constant.
template <class Each>
inline __attribute__((always_inline)) void in_groups(int64_t group, Each each) {
  int64_t head = 0;
  for (; WIDTH == 16 && head + 4 <= group; head += 4) each(Constant<4>{}, head);
  for (; head + 2 <= group; head += 2) each(Constant<2>{}, head);
  if (head < group) each(Constant<1>{}, head);
}

// Attends with the query heads of `kv_heads` key heads, [kv_heads * group, width] and already scaled; `scores` has room for a float of each of
// these heads and positions. What is at `after` is fetched at the end.
template <class T, class Places>
inline void attend(const float *query, int64_t kv_heads, int64_t group, int64_t width, const T *keys, const T *values, int64_t stride,
                   Places place, int64_t count, const T *after, float *scores, float *output) {
  int64_t heads = kv_heads * group, size = kv_heads * width;
  // Calls each(run of positions, its first one, what follows) in the order of the positions.
  auto in_runs = [&](const T *rows, const T *then, auto each) {
    for (int64_t p = 0; p < count;) {
      Run run = place(p, count);
      int64_t end = p + run.length;
      Following<T> next{end < count ? rows + place(end, count).slot * stride : then, size, stride, 0};
      each(run, p, next);
      p = end;
    }
  };
  in_runs(keys, values + place(0, count).slot * stride, [&](Run run, int64_t p, Following<T> &next) {
    for (int64_t h = 0; h < kv_heads; h++)
      in_groups(group, [&](auto some, int64_t g) {
        int64_t head = h * group + g;
        scores_of_run<T, some.value>(query + head * width, width, keys + run.slot * stride + h * width, stride, run.length,
                                     scores + head * count + p, count, g ? nullptr : &next);
      });
  });
  for (int64_t head = 0; head < heads; head++) softmax(scores + head * count, count);
  memset(output, 0, heads * width * sizeof(float));
  in_runs(values, after, [&](Run run, int64_t p, Following<T> &next) {
    for (int64_t h = 0; h < kv_heads; h++)
      in_groups(group, [&](auto some, int64_t g) {
        int64_t head = h * group + g;
        mix_run<T, some.value>(scores + head * count + p, count, values + run.slot * stride + h * width, stride, run.length,
                               output + head * width, width, g ? nullptr : &next);
      });
  });
}

// Calls each(row, first key head, number of key heads) for a part of [rows, kv_heads], with as many heads of a row as the part has.
template <class Each>
inline void in_rows(Range mine, int64_t kv_heads, Each each) {
  for (int64_t task = mine.begin; task < mine.end;) {
    int64_t row = task / kv_heads, head = task % kv_heads, some = kv_heads - head;
    if (some > mine.end - task) some = mine.end - task;
    each(row, head, some);
    task += some;
  }
}

template <class T>
void attention(const omni_attention *a, const omni_team *team) {
  int64_t group = a->heads / a->kv_heads, width = a->head_dim, stride = a->kv_heads * width;
  Range mine = share(a->rows * a->kv_heads, 1, team);
  Scratch own{team->own};
  float *query = own.take<float>(a->heads * width), *output = own.take<float>(a->heads * width);
  in_rows(mine, a->kv_heads, [&](int64_t row, int64_t head, int64_t some) {
    int64_t offset = (row * a->heads + head * group) * width, size = some * group * width;
    to_floats((const T *)a->query + offset, size, query);
    for (int64_t i = 0; i < size; i++) query[i] *= (float)a->scale;
    attend(query, some, group, width, (const T *)a->keys + head * width, (const T *)a->values + head * width, stride,
           Slots{a->slots + row * a->slot_stride}, a->lengths[row], (const T *)a->keys, (float *)own.next, output);
    from_floats(output, size, (T *)a->output + offset);
  });
}

}  // namespace
