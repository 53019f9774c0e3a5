// Threads that compute a call together, made when a call first needs them. They sleep between calls.
#pragma once
#include "interface.h"

// A kind of calls that take about the same time: what is computed, such as the layers of a decoder, and how much of it. Amounts that differ by
// less than a half are one kind.
struct Load {
  const void *of;
  int64_t amount;
};

// Calls work(context, team) on at most `threads` threads, the caller's included, and returns when all have returned. Of the team and the caller
// alone, the faster one in earlier calls of the same load is chosen. A second caller meanwhile, or a caller after a fork, is not kept waiting: it
// computes alone. Results do not depend on the number of threads.
void run(int threads, size_t shared_bytes, size_t own_bytes, void (*work)(void *context, const omni_team *team), void *context, Load load);

// Chooses by measurement (at first), or always takes as many threads as asked for.
void measure_threads(bool on);
