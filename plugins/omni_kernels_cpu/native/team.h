// A thread's part of work that a team shares, and scratch memory that is taken from its beginning.
#pragma once
#include "interface.h"

namespace {

struct Range {
  int64_t begin, end;
};

// The part of `size` items of one thread, in multiples of `step`.
inline Range share(int64_t size, int64_t step, const omni_team *team) {
  int64_t steps = (size + step - 1) / step;
  int64_t begin = steps * team->index / team->count * step, end = steps * (team->index + 1) / team->count * step;
  return {begin < size ? begin : size, end < size ? end : size};
}

inline void wait(const omni_team *team) {
  if (team->count > 1) team->wait(team->barrier);
}

struct Scratch {
  char *next;
  template <class T>
  T *take(int64_t count) {
    T *taken = (T *)next;
    next += (count * sizeof(T) + 63) / 64 * 64;
    return taken;
  }
};

}  // namespace
