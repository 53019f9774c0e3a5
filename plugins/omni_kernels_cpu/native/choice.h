// The choice between a team and the caller alone, by measurement: a team loses where the other processors are busy with other processes, and
// where a call is shorter than waking threads. Results do not depend on it.
#pragma once
#include <stdint.h>

// The durations of one kind of calls both ways, and which way is next.
struct Choice {
  static constexpr uint32_t TRIES = 3;    // of each way at first, of which the shortest counts
  static constexpr double LONG = 0.02;    // seconds of a call, such as a prompt's, that loses too much by tries: two together, then one alone
  static constexpr double WORTH = 0.001;  // seconds of a team's call, beside which waking threads is nothing
  static constexpr uint32_t OFTEN = 16;   // calls between two tries of the slower way; doubled while it stays slower
  static constexpr uint32_t SELDOM = 1024;
  static constexpr uint32_t AGAIN = 2;  // after a try that was faster

  double seconds[2] = {0, 0};  // alone, together
  uint32_t tries[2] = {0, 0}, between = OFTEN, left = OFTEN;
  bool trying = false, is_long = false;
  bool sure = false;  // the last team's call says by itself that it paid

  bool faster() const { return seconds[1] < seconds[0]; }
  uint32_t wanted(bool together) const { return is_long ? 1 + together : TRIES; }

  // True: together.
  bool next() {
    if (sure) return true;
    if (tries[0] < wanted(false) || tries[1] < wanted(true)) return is_long ? tries[1] < wanted(true) : tries[1] <= tries[0];
    if (left) left--;  // a try that found the pool busy is repeated
    trying = left == 0;
    return trying ? !faster() : faster();
  }

  // `paid`: by what its threads did, a team's call was not slower than alone.
  void took(bool together, double duration, bool paid) {
    double &known = seconds[together];
    if (together) sure = paid && duration > WORTH;
    if (!tries[0] && !tries[1]) is_long = duration > LONG;
    if (tries[together] < wanted(together)) {
      known = tries[together]++ ? (duration < known ? duration : known) : duration;
      return;
    }
    bool before = faster(), good = duration < seconds[!together];
    known += ((duration < 2 * known ? duration : 2 * known) - known) / (trying ? 2 : 4);  // a pause of the whole machine says little
    if (faster() != before)
      between = left = OFTEN;
    else if (trying)
      between = left = good ? AGAIN : 2 * between < SELDOM ? 2 * between : SELDOM;
    trying = false;
  }
};

// Choices of some hundred kinds of calls; kinds that share a place take turns in it.
struct Choices {
  static constexpr int PLACES = 256;
  uint64_t keys[PLACES] = {};
  Choice each[PLACES];

  Choice &of(uint64_t key) {
    int place = (int)(key * 0x9e3779b97f4a7c15ull >> 56);
    if (keys[place] != key) {
      keys[place] = key;
      each[place] = Choice();
    }
    return each[place];
  }
};
