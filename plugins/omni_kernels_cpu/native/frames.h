// Frames of a code predictor in one call: each position through all layers, the choice of a code from its output, and the code's embedding as
// the next position.
#pragma once
#include "decoder.h"
#include "prefill.h"
#include "rows.h"
#include "sampling.h"

namespace {

template <class T>
struct Frames {
  const omni_stack *stack;
  const omni_frames *call;
  const omni_team *team;
  omni_team layers;  // with the memory behind this one's
  T *x, *output, *cos, *sin;
  int32_t *pages, *lengths;
  float *logits;

  // Computes `count` positions from `begin` on of all frames; their inputs are in x, [rows, count, hidden].
  void positions(int64_t begin, int64_t count) {
    int64_t width = stack->head_dim;
    if (team->index == 0)
      for (int64_t row = 0; row < call->rows * count; row++) {
        int64_t position = begin + row % count;
        pages[row] = (int32_t)(row / count);
        lengths[row] = (int32_t)(position + 1);
        memcpy(cos + row * width, (const T *)call->cos + position * width, width * sizeof(T));
        memcpy(sin + row * width, (const T *)call->sin + position * width, width * sizeof(T));
      }
    wait(team);
    omni_step step{x, cos, sin, pages, lengths, output, nullptr, call->rows * count, 1, call->groups, 0, call->dtype, count};
    (call->prompts ? prefill<T> : decode<T>)(stack, &step, &layers);
    wait(team);
  }

  // Chooses the codes of a group from the last of `count` positions of each frame.
  void choose(int64_t group, int64_t count) {
    int64_t hidden = stack->hidden, rows = call->rows, codes = call->groups - 1;
    const omni_matrix &head = call->heads[group];
    {
      Scratch own{team->own};
      float *wide = own.take<float>(rows * hidden);
      for (int64_t row = 0; row < rows; row++) to_floats(output + (row * count + count - 1) * hidden, hidden, wide + row * hidden);
      multiply_rows(head, wide, rows, own, team, [&](int64_t row, int64_t o, float value) {
        logits[row * head.out + o] = Element<T>::one(Element<T>::round(value));
      });
    }
    wait(team);
    Range mine = share(rows, 1, team);
    for (int64_t row = mine.begin; row < mine.end; row++) {
      float temperature = call->temperature ? (float)call->temperature[row] : 0.0f;
      double uniform = call->uniforms ? call->uniforms[row * codes + group] : 0.0;
      int64_t code = draw(logits + row * head.out, head.out, temperature, call->top_k, (float)call->top_p, uniform, {team->own});
      call->codes[row * codes + group] = code;
      auto take = call->embedded == OMNI_BFLOAT16 ? embed<bf16> : embed<T>;
      take(call->embeddings[group], code < 0 ? 0 : code, hidden, x + row * hidden, (T *)call->total + row * hidden);
    }
  }

  // Makes a code's embedding the next position, and adds it to the sum.
  template <class E>
  static void embed(const void *embeddings, int64_t code, int64_t hidden, T *position, T *total) {
    const E *embedded = (const E *)embeddings + code * hidden;
    FOR_VECTORS(i, hidden) {
      Floats values = load_at(embedded, i, hidden);
      store_at(position, i, hidden, values);
      store_at(total, i, hidden, load_at(total, i, hidden) + values);
    }
  }

  void run() {
    int64_t hidden = stack->hidden, rows = call->rows, width = stack->head_dim, vocab = 0;
    for (int64_t group = 0; group + 1 < call->groups; group++) vocab = call->heads[group].out > vocab ? call->heads[group].out : vocab;
    Scratch shared{team->shared};
    x = shared.take<T>(2 * rows * hidden);
    output = shared.take<T>(2 * rows * hidden);
    cos = shared.take<T>(2 * rows * width);
    sin = shared.take<T>(2 * rows * width);
    pages = shared.take<int32_t>(2 * rows);
    lengths = shared.take<int32_t>(2 * rows);
    logits = shared.take<float>(rows * vocab);
    layers = *team;
    layers.shared = shared.next;
    if (team->index == 0) {
      memcpy(call->total, call->first, rows * hidden * sizeof(T));
      for (int64_t row = 0; row < rows; row++) {
        memcpy(x + 2 * row * hidden, (const T *)call->hidden + row * hidden, hidden * sizeof(T));
        memcpy(x + (2 * row + 1) * hidden, (const T *)call->first + row * hidden, hidden * sizeof(T));
      }
    }
    positions(0, 2);
    choose(0, 2);
    for (int64_t position = 2; position < call->groups; position++) {
      wait(team);
      positions(position, 1);
      choose(position - 1, 1);
    }
  }
};

template <class T>
void frames(const omni_stack *stack, const omni_frames *call, const omni_team *team) {
  Frames<T> frames{};
  frames.stack = stack;
  frames.call = call;
  frames.team = team;
  frames.run();
}

}  // namespace
