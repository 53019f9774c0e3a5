#include "pool.h"

#include "choice.h"

#include <limits.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#endif

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

namespace {

constexpr int MOST_THREADS = 64;
constexpr double SPIN = 5e-4;  // seconds of a wait within a call, before the thread sleeps: some ten phases of a layer
constexpr double PART = 0.5;   // or, of a long phase, this share of it, but no more than LONGEST: its halves end some percent apart
constexpr double LONGEST = 1.5e-3;
constexpr double AWAKE = 1e-3; // seconds after a call in which a thread does not sleep, if the last call came as soon
constexpr int SPINS = 64;      // between two looks at the clock
constexpr double ALL = 0.9;    // share of a call's time that a thread has a processor which others leave to it
constexpr double PAYS = 0.5;   // seconds of work in a second of a team, beside those of one thread, for each thread more

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

double seconds_of(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double now() { return seconds_of(CLOCK_MONOTONIC); }
double worked() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }  // by this thread

thread_local double phase_began = 0;  // when this thread's last wait of more than some microseconds ended, or its part of the call began
thread_local double waited = 0;  // seconds that this thread spun in its call's waits, but not the first microseconds of each

// A thread that waits for long sleeps: on a machine with more work than cores it would keep the one that it waits for from running. Not
// sooner, because Linux may wake it on the core of the thread that wakes it, and from then on the two take turns.
struct Barrier {
  std::atomic<int> waiting{0}, turn{0}, sleeping{0};
  int count = 1;

  static void wait(void *barrier) {
    Barrier &b = *static_cast<Barrier *>(barrier);
    int turn = b.turn.load(std::memory_order_relaxed);
    if (b.waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == b.count) {
      b.waiting.store(0, std::memory_order_relaxed);
      b.turn.store(turn + 1, std::memory_order_seq_cst);
      if (b.sleeping.load(std::memory_order_seq_cst)) b.wake();
      return;
    }
    for (int spins = 0; spins < SPINS; spins++) {
      if (b.turn.load(std::memory_order_acquire) != turn) return;
      pause();
    }
    double begin = now(), spun = 0, most = PART * (begin - phase_began);
    most = most < SPIN ? SPIN : most > LONGEST ? LONGEST : most;
    while (b.turn.load(std::memory_order_acquire) == turn && (spun = now() - begin) < most)
      for (int spins = 0; spins < SPINS && b.turn.load(std::memory_order_relaxed) == turn; spins++) pause();
    waited += spun;
    phase_began = begin + spun;
    if (b.turn.load(std::memory_order_acquire) != turn) return;
    b.sleeping.fetch_add(1, std::memory_order_seq_cst);
    while (b.turn.load(std::memory_order_seq_cst) == turn) b.sleep(turn);
    b.sleeping.fetch_sub(1, std::memory_order_relaxed);
    phase_began = now();
  }

#if defined(__linux__)
  // Returns at once if the turn is another one.
  void sleep(int seen) { syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0); }
  void wake() { syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }
#else
  void sleep(int) { std::this_thread::yield(); }
  void wake() {}
#endif
};

// Memory that only grows, aligned to a cache line.
struct Buffer {
  char *memory = nullptr;
  size_t size = 0;
  char *at_least(size_t bytes) {
    if (bytes > size) {
      free(memory);
      size = (bytes + bytes / 4 + 63) / 64 * 64;
      memory = static_cast<char *>(aligned_alloc(64, size));
      if (!memory) abort();
    }
    return memory;
  }
  ~Buffer() { free(memory); }
};

struct Pool {
  std::mutex calling, lock;
  std::condition_variable started;
  Barrier barrier, finished;
  pid_t process = getpid();
  int threads = 0;  // besides the caller's
  std::atomic<uint64_t> call{0};
  int needed = 0;
  void (*work)(void *, const omni_team *) = nullptr;
  void *context = nullptr;
  char *shared = nullptr;
  Buffer own[MOST_THREADS];
  double spent[MOST_THREADS] = {};  // processor seconds of the last call, by thread
  double work_done[MOST_THREADS] = {};  // those without waits
  std::mutex choosing;
  Choices choices;
  int processors = usable_processors();

  static int usable_processors() {
#if defined(__linux__)
    cpu_set_t allowed;
    if (!sched_getaffinity(0, sizeof allowed, &allowed)) return CPU_COUNT(&allowed);
#endif
    return (int)std::thread::hardware_concurrency();
  }

  bool together(uint64_t key) {
    std::lock_guard<std::mutex> held(choosing);
    return choices.of(key).next();
  }

  void took(uint64_t key, bool together, double seconds, bool paid) {
    std::lock_guard<std::mutex> held(choosing);
    choices.of(key).took(together, seconds, paid);
  }

  // Works as thread `index` of the team, until the others have finished too.
  void work_as(int index, const omni_team &team) {
    double begin = worked();
    waited = 0;
    phase_began = now();
    work(context, &team);
    spent[index] = worked() - begin;
    work_done[index] = spent[index] - waited;
    Barrier::wait(&finished);
  }

  // Says whether the last call, of `seconds`, was hardly slower than alone: each thread had its processor, or all did much more than one can.
  // Waits for memory count as work: where threads share its bandwidth, one alone is not faster than both.
  bool paid(int count, double seconds) const {
    double least = spent[0], done = 0;
    for (int index = 0; index < count; index++) {
      least = spent[index] < least ? spent[index] : least;
      done += work_done[index];
    }
    return least > ALL * seconds || done > (1 + PAYS * (count - 1)) * seconds;
  }

  void serve(int index) {
    uint64_t seen = 0;
    double rested = AWAKE;  // seconds before the last call
    for (;;) {
      double begin = now();
      if (rested < AWAKE)
        while (call.load(std::memory_order_acquire) == seen && now() < begin + AWAKE)
          for (int spins = 0; spins < SPINS && call.load(std::memory_order_relaxed) == seen; spins++) pause();
      {
        std::unique_lock<std::mutex> held(lock);
        started.wait(held, [&] { return call != seen && index < needed; });
        seen = call;
      }
      rested = now() - begin;
      work_as(index, {index, needed, &barrier, Barrier::wait, shared, own[index].memory});
    }
  }

  void run(int count, size_t own_bytes) {
    while (threads < count - 1) {
      int index = ++threads;
      std::thread(&Pool::serve, this, index).detach();
    }
    for (int index = 1; index < count; index++) own[index].at_least(own_bytes);
    barrier.count = finished.count = count;
    {
      std::lock_guard<std::mutex> held(lock);
      needed = count;
      call++;
    }
    started.notify_all();
  }
};

// Never destroyed: its threads may outlive the static objects of a process that ends.
std::atomic<Pool *> pool{nullptr};

Pool *current_pool() {
  Pool *found = pool.load();
  if (!found || found->process != getpid()) {  // after a fork the threads are gone
    Pool *made = new Pool;
    if (pool.compare_exchange_strong(found, made)) return made;
    delete made;
    return pool.load();
  }
  return found;
}

std::atomic<bool> measuring{true};

// Equal for amounts of one power of two that have the same next bit.
uint64_t key_of(void (*work)(void *, const omni_team *), Load load) {
  uint64_t amount = load.amount > 0 ? (uint64_t)load.amount : 1;
  int power = 63 - __builtin_clzll(amount);
  uint64_t size = 2 * power + (power ? amount >> (power - 1) & 1 : 0);
  return ((uint64_t)(uintptr_t)work * 31 + (uint64_t)(uintptr_t)load.of) * 131 + size + 1;
}

void run_alone(char *shared, char *own, void (*work)(void *, const omni_team *), void *context) {
  Barrier alone;
  omni_team team{0, 1, &alone, Barrier::wait, shared, own};
  work(context, &team);
}

}  // namespace

void measure_threads(bool on) { measuring = on; }

void run(int threads, size_t shared_bytes, size_t own_bytes, void (*work)(void *, const omni_team *), void *context, Load load) {
  static thread_local Buffer shared_buffer, own_buffer;
  char *shared = shared_buffer.at_least(shared_bytes), *own = own_buffer.at_least(own_bytes);
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  Pool *found = threads > 1 ? current_pool() : nullptr;
  bool measured = found && measuring;
  if (measured && threads > found->processors) threads = found->processors;
  if (threads < 2) return run_alone(shared, own, work, context);
  uint64_t key = measured ? key_of(work, load) : 0;
  bool together = !measured || found->together(key);
  double begin = measured ? now() : 0, seconds = 0;
  bool paid = false;
  if (!together) {
    run_alone(shared, own, work, context);
    seconds = now() - begin;
  } else if (!found->calling.try_lock()) {
    return run_alone(shared, own, work, context);
  } else {
    found->work = work;
    found->context = context;
    found->shared = shared;
    found->run(threads, own_bytes);
    found->work_as(0, {0, threads, &found->barrier, Barrier::wait, shared, own});
    seconds = now() - begin;
    paid = found->paid(threads, seconds);
    found->calling.unlock();
  }
  if (measured) found->took(key, together, seconds, paid);
}
