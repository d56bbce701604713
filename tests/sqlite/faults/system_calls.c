/* Intercepts the system calls with which a program writes files; loaded by LD_PRELOAD.

   It handles only files below the watched folder, except the shared memory of SQLite ("-shm"). Each call may be
   recorded, and one of them, counted from arming, may kill the process or fail. The functions that the test calls are
   at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, UNLINK = 8, CREATE = 16, READ = 32, OPEN = 64 };
enum { KILL_BEFORE = 1, KILL_AFTER = 2, FAIL = 3 };
#define DESCRIPTORS 65536

static char folder[4096];
static char *paths[DESCRIPTORS];
static int log_descriptor = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int armed_calls, armed_at, armed_action, armed_error, armed_times, seen;
static char armed_suffix[64];

static int ends_with(const char *path, const char *suffix) {
    size_t length = strlen(path), tail = strlen(suffix);
    return length >= tail && strcmp(path + length - tail, suffix) == 0;
}

static int concerned(const char *path) {
    return path && folder[0] && strncmp(path, folder, strlen(folder)) == 0 && !ends_with(path, "-shm");
}

static const char *path_of(int descriptor) {
    return descriptor >= 0 && descriptor < DESCRIPTORS ? paths[descriptor] : NULL;
}

static void remember(int descriptor, const char *path) {
    if (descriptor < 0 || descriptor >= DESCRIPTORS) return;
    free(paths[descriptor]);
    paths[descriptor] = concerned(path) ? strdup(path) : NULL;
}

static void record(char kind, const char *path, uint64_t offset, const void *data, uint32_t size) {
    if (log_descriptor < 0) return;
    uint32_t length = strlen(path);
    struct iovec parts[6] = {{&kind, 1}, {&length, 4}, {&offset, 8}, {&size, 4}, {(void *)path, length}, {(void *)data, size}};
    pthread_mutex_lock(&mutex);
    ssize_t written = syscall(SYS_writev, log_descriptor, parts, size ? 6 : 5);
    pthread_mutex_unlock(&mutex);
    if (written != (ssize_t)(17 + length + size)) abort();
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* Count the call; return whether the process must end after it, or -1 with errno set if the call must fail. */
static int before(int call, const char *path) {
    if (!(armed_calls & call) || !ends_with(path, armed_suffix)) return 0;
    int number = __sync_add_and_fetch(&seen, 1);
    if (number < armed_at || (armed_times >= 0 && number >= armed_at + armed_times)) return 0;
    if (armed_action == KILL_BEFORE) die();
    if (armed_action == KILL_AFTER) return 1;
    errno = armed_error;
    return -1;
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

static int opened(int place, const char *path, int flags, mode_t mode) {
    int fresh = (flags & O_CREAT) && concerned(path) && access(path, F_OK) != 0;
    int saved = errno, then = fresh ? before(CREATE, path) : 0;
    if (then < 0 || (concerned(path) && before(OPEN, path) < 0)) return -1;
    errno = saved;
    int descriptor = syscall(SYS_openat, place, path, flags, mode);
    if (descriptor >= 0) remember(descriptor, path);
    if (descriptor >= 0 && fresh) record('C', path, 0, NULL, 0);
    if (then > 0) die();
    return descriptor;
}

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int place, const char *path, int flags, ...) { MODE(flags) return opened(place, path, flags, mode); }
int openat64(int place, const char *path, int flags, ...) { MODE(flags) return opened(place, path, flags, mode); }

int close(int descriptor) {
    if (path_of(descriptor)) remember(descriptor, NULL);
    return REAL(close)(descriptor);
}

static ssize_t written(int descriptor, const void *data, size_t size, off64_t offset) {
    const char *path = path_of(descriptor);
    int then = path ? before(WRITE, path) : 0;
    if (then < 0) return -1;
    ssize_t done = syscall(SYS_pwrite64, descriptor, data, size, offset);
    if (path && done > 0) record('W', path, offset, data, done);
    if (then > 0) die();
    return done;
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) { return written(descriptor, data, size, offset); }
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) { return written(descriptor, data, size, offset); }

ssize_t write(int descriptor, const void *data, size_t size) {
    const char *path = path_of(descriptor);
    if (!path) return syscall(SYS_write, descriptor, data, size);
    off64_t offset = lseek64(descriptor, 0, SEEK_CUR);
    ssize_t done = written(descriptor, data, size, offset);
    if (done > 0) lseek64(descriptor, offset + done, SEEK_SET);
    return done;
}

static ssize_t read_at(int descriptor, void *data, size_t size, off64_t offset) {
    const char *path = path_of(descriptor);
    if (path && before(READ, path) < 0) return -1;
    return syscall(SYS_pread64, descriptor, data, size, offset);
}

ssize_t pread(int descriptor, void *data, size_t size, off_t offset) { return read_at(descriptor, data, size, offset); }
ssize_t pread64(int descriptor, void *data, size_t size, off64_t offset) { return read_at(descriptor, data, size, offset); }

static int truncated(int descriptor, off64_t size) {
    const char *path = path_of(descriptor);
    int then = path ? before(TRUNCATE, path) : 0;
    if (then < 0) return -1;
    int result = syscall(SYS_ftruncate, descriptor, size);
    if (path && result == 0) record('T', path, size, NULL, 0);
    if (then > 0) die();
    return result;
}

int ftruncate(int descriptor, off_t size) { return truncated(descriptor, size); }
int ftruncate64(int descriptor, off64_t size) { return truncated(descriptor, size); }

static int allocated(int descriptor, off64_t offset, off64_t size) {
    const char *path = path_of(descriptor);
    int then = path ? before(TRUNCATE, path) : 0;
    if (then < 0) return errno;
    int result = syscall(SYS_fallocate, descriptor, 0, offset, size) == 0 ? 0 : errno;
    if (then > 0) die();
    return result;
}

int posix_fallocate(int descriptor, off_t offset, off_t size) { return allocated(descriptor, offset, size); }
int posix_fallocate64(int descriptor, off64_t offset, off64_t size) { return allocated(descriptor, offset, size); }

static int synced(int descriptor, long number) {
    const char *path = path_of(descriptor);
    int then = path ? before(SYNC, path) : 0;
    if (then < 0) {
        int saved = errno;
        record('F', path, 0, NULL, 0);
        errno = saved;
        return -1;
    }
    int result = syscall(number, descriptor);
    if (path && result == 0) record('S', path, 0, NULL, 0);
    if (then > 0) die();
    return result;
}

int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }

int unlink(const char *path) {
    int then = concerned(path) ? before(UNLINK, path) : 0;
    if (then < 0) return -1;
    int result = syscall(SYS_unlink, path);
    if (concerned(path) && result == 0) record('U', path, 0, NULL, 0);
    if (then > 0) die();
    return result;
}

/* --- called by the test, in this process ------------------------------------------------------------------------ */

void holdfast_watch(const char *path) { strncpy(folder, path, sizeof folder - 1); }

void holdfast_record(const char *path) {
    log_descriptor = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

void holdfast_note(const char *text) { record('N', text, 0, NULL, 0); }

void holdfast_arm(int calls, const char *suffix, int at, int action, int error, int times) {
    strncpy(armed_suffix, suffix, sizeof armed_suffix - 1);
    armed_at = at, armed_action = action, armed_error = error, armed_times = times, seen = 0, armed_calls = calls;
}

int holdfast_seen(void) { return seen; }
