// Adds the seconds in a file to the wall clock of a process, where LD_PRELOAD names this library. What waits by the
// monotonic clock waits as before, and what waits until an instant of the wall clock, until that of the true one.
// A call that reads the wall clock and a wait that counts by it belong together: with one of them alone, waits are wrong.
// STEPPING_CLOCK: the file, a signed number of 64 bits.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define EARLIEST_WALL_S 1000000000  // the monotonic clock counts from the start of the machine, and is far from it

typedef int (*timed_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef int (*c11_timed_wait)(cnd_t *, mtx_t *, const struct timespec *);

static const volatile int64_t *offset_s;
static timed_wait true_timed_wait;
static c11_timed_wait true_c11_timed_wait;

static timed_wait find_timed_wait(void) {
  // The default version of x86-64; others have one alone.
  void *symbol = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  return (timed_wait)(symbol != NULL ? symbol : dlsym(RTLD_NEXT, "pthread_cond_timedwait"));
}

static struct timespec find_true_instant(const struct timespec *until) {
  struct timespec at = *until;
  if (offset_s != NULL && at.tv_sec > EARLIEST_WALL_S) at.tv_sec -= *offset_s;
  return at;
}

__attribute__((constructor)) static void map_file(void) {
  true_timed_wait = find_timed_wait();
  true_c11_timed_wait = (c11_timed_wait)dlsym(RTLD_NEXT, "cnd_timedwait");
  const char *path = getenv("STEPPING_CLOCK");
  int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void *memory = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (memory != MAP_FAILED) offset_s = memory;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  long result = syscall(SYS_clock_gettime, clock, at);
  if (result == 0 && offset_s != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    at->tv_sec += *offset_s;
  }
  return (int)result;
}

int gettimeofday(struct timeval *at, void *zone) {
  (void)zone;
  struct timespec now;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return result;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at != NULL) *at = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
  return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  struct timespec at = find_true_instant(until);
  if (true_timed_wait == NULL) true_timed_wait = find_timed_wait();
  return true_timed_wait(condition, mutex, &at);
}

// librdkafka waits by C's own threads, whose calls do not come by those of POSIX.
int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until) {
  struct timespec at = find_true_instant(until);
  if (true_c11_timed_wait == NULL) true_c11_timed_wait = (c11_timed_wait)dlsym(RTLD_NEXT, "cnd_timedwait");
  return true_c11_timed_wait(condition, mutex, &at);
}
