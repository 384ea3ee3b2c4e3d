// Preloaded into the program by tests/cli/file_faults_test.py: of the calls that change files below
// PARADYSE_FAULT_FOLDER the PARADYSE_FAULT_AT-th, from 1, fails, is done in part, or ends the
// process, as PARADYSE_FAULT says.  It fails with ENOSPC, or as PARADYSE_FAULT_ERROR says.  Each
// call is a line of PARADYSE_FAULT_LOG, with its number and the file.  With PARADYSE_FAULT_READS
// the calls are those that read files.  Only those count whose function is PARADYSE_FAULT_CALL and
// whose file has PARADYSE_FAULT_FILE in its name, where these are set.
//
// The C library's own functions are looked up by name: a call of the kernel would not do, since
// sanitizers and other preloaded libraries may stand between.
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

enum class Fault { none, fails, shortens, ends };

// Variables are those of the process that calls, which a resident's child has from its begin on.
const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_below(const char* path) {
  const char* const folder = variable("PARADYSE_FAULT_FOLDER");
  const std::size_t length = std::strlen(folder);
  return length > 0 && std::strncmp(path, folder, length) == 0;
}

bool reads_count() { return *variable("PARADYSE_FAULT_READS") != '\0'; }

// A file by its name, or that of an open one.
struct Named {
  explicit Named(const char* path) { std::snprintf(name, sizeof(name), "%s", path); }
  explicit Named(int descriptor) {
    char link[64];
    std::snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
    (void)!readlink(link, name, sizeof(name) - 1);
  }
  bool is_below() const { return ::is_below(name); }

  char name[PATH_MAX] = {};
};

std::atomic<long> calls{0};
pid_t counted_by = 0;

bool counts(const char* name, const Named& file) {
  const char* const call = variable("PARADYSE_FAULT_CALL");
  return (*call == '\0' || std::strcmp(call, name) == 0) &&
         std::strstr(file.name, variable("PARADYSE_FAULT_FILE")) != nullptr;
}

// What happens to this call.
Fault next(const char* name, const Named& file) {
  if (!counts(name, file)) {
    return Fault::none;
  }
  if (counted_by != getpid()) {  // a fork counts anew
    counted_by = getpid();
    calls = 0;
  }
  const long at = std::atol(variable("PARADYSE_FAULT_AT"));
  const long call = ++calls;
  if (const char* const log = variable("PARADYSE_FAULT_LOG"); *log != '\0') {
    char line[PATH_MAX + 64];
    const int length = std::snprintf(line, sizeof(line), "%ld %s %s\n", call, name, file.name);
    static const auto real_open =
        reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(RTLD_NEXT, "open"));
    static const auto real_write =
        reinterpret_cast<ssize_t (*)(int, const void*, size_t)>(dlsym(RTLD_NEXT, "write"));
    const int to = real_open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (to >= 0) {
      (void)!real_write(to, line, static_cast<std::size_t>(length));
      close(to);
    }
  }
  const char* const how = variable("PARADYSE_FAULT");
  const bool all_after = std::strcmp(how, "full") == 0;  // a disk that stays full
  if (at == 0 || (all_after ? call < at : call != at)) {
    return Fault::none;
  }
  if (std::strcmp(how, "end") == 0) {
    kill(getpid(), SIGKILL);
    pause();
  }
  return std::strcmp(how, "short") == 0 ? Fault::shortens : Fault::fails;
}

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int failed() {
  const char* const error = variable("PARADYSE_FAULT_ERROR");
  errno = std::strcmp(error, "EIO") == 0      ? EIO
          : std::strcmp(error, "EDQUOT") == 0 ? EDQUOT
                                              : ENOSPC;
  return -1;
}

// The library's own function, unless what it changes is below the folder and it is to fail.
template <typename Result, typename Changed, typename... Arguments>
Result unless_it_fails(const char* name, Changed changed, Arguments... arguments) {
  const Named file(changed);
  return !reads_count() && file.is_below() && next(name, file) != Fault::none
             ? failed()
             : real<Result(Arguments...)>(name)(arguments...);
}

constexpr int kChanges = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;

// To open a file for reading cannot be done in part.
bool open_fails(const char* path, int flags) {
  if (reads_count() != ((flags & kChanges) == 0) || !is_below(path)) {
    return false;
  }
  const Fault fault = next("open", Named(path));
  return fault == Fault::fails || (fault == Fault::shortens && !reads_count());
}

// A read is done in part, as one that a signal ends.
template <typename Read>
ssize_t read_some(const char* name, int descriptor, size_t size, const Read& body) {
  const Named file(descriptor);
  if (!reads_count() || !file.is_below()) {
    return body(size);
  }
  switch (next(name, file)) {
    case Fault::fails:
      return failed();
    case Fault::shortens:
      return body(size < 2 ? size : size / 2);
    default:
      return body(size);
  }
}

FILE* opened(const char* name, const char* path, const char* mode) {
  if (open_fails(path, std::strchr(mode, 'r') == nullptr ? O_WRONLY : O_RDONLY)) {
    failed();
    return nullptr;
  }
  return real<FILE*(const char*, const char*)>(name)(path, mode);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_fails(path, flags) ? failed()
                                 : real<int(const char*, int, ...)>("open")(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_fails(path, flags) ? failed()
                                 : real<int(const char*, int, ...)>("open64")(path, flags, mode);
}

FILE* fopen64(const char* path, const char* mode) { return opened("fopen64", path, mode); }

FILE* fopen(const char* path, const char* mode) { return opened("fopen", path, mode); }

ssize_t write(int descriptor, const void* data, size_t size) {
  const auto real_write = real<ssize_t(int, const void*, size_t)>("write");
  const Named file(descriptor);
  if (reads_count() || !file.is_below()) {
    return real_write(descriptor, data, size);
  }
  switch (next("write", file)) {
    case Fault::fails:
      return failed();
    case Fault::shortens: {  // then the disk is full
      const ssize_t written = real_write(descriptor, data, size / 2);
      return size < 2 ? failed() : written;
    }
    default:
      return real_write(descriptor, data, size);
  }
}

ssize_t writev(int descriptor, const iovec* parts, int count) {
  return unless_it_fails<ssize_t>("writev", descriptor, descriptor, parts, count);
}

ssize_t sendfile(int to, int from, off_t* at, size_t size) {
  return unless_it_fails<ssize_t>("sendfile", to, to, from, at, size);
}

ssize_t sendfile64(int to, int from, off_t* at, size_t size) {
  return unless_it_fails<ssize_t>("sendfile64", to, to, from, at, size);
}

ssize_t copy_file_range(
    int from, off_t* from_at, int to, off_t* to_at, size_t size, unsigned flags) {
  return unless_it_fails<ssize_t>("copy_file_range", to, from, from_at, to, to_at, size, flags);
}

ssize_t read(int descriptor, void* data, size_t size) {
  return read_some("read", descriptor, size, [&](size_t part) {
    return real<ssize_t(int, void*, size_t)>("read")(descriptor, data, part);
  });
}

ssize_t pread(int descriptor, void* data, size_t size, off_t at) {
  return read_some("pread", descriptor, size, [&](size_t part) {
    return real<ssize_t(int, void*, size_t, off_t)>("pread")(descriptor, data, part, at);
  });
}

ssize_t pread64(int descriptor, void* data, size_t size, off_t at) {
  return read_some("pread64", descriptor, size, [&](size_t part) {
    return real<ssize_t(int, void*, size_t, off_t)>("pread64")(descriptor, data, part, at);
  });
}

// A file that is mapped; memory has no descriptor.
void* mmap(void* at, size_t size, int protection, int flags, int descriptor, off_t offset) {
  if (descriptor >= 0 && reads_count()) {
    const Named file(descriptor);
    if (file.is_below() && next("mmap", file) == Fault::fails) {
      failed();
      return MAP_FAILED;
    }
  }
  return real<void*(void*, size_t, int, int, int, off_t)>("mmap")(
      at, size, protection, flags, descriptor, offset);
}

DIR* opendir(const char* path) {
  if (open_fails(path, O_RDONLY)) {
    failed();
    return nullptr;
  }
  return real<DIR*(const char*)>("opendir")(path);
}

// As a file system on the network has it that writes when a file is closed: closed it is, and what
// was only read loses nothing.
int close(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  const Named file(descriptor);
  const bool fails = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && !reads_count() &&
                     file.is_below() && next("close", file) != Fault::none;
  const int closed = real<int(int)>("close")(descriptor);
  return fails ? failed() : closed;
}

int fsync(int descriptor) { return unless_it_fails<int>("fsync", descriptor, descriptor); }

int ftruncate(int descriptor, off_t size) {
  return unless_it_fails<int>("ftruncate", descriptor, descriptor, size);
}

int truncate(const char* path, off_t size) {
  return unless_it_fails<int>("truncate", path, path, size);
}

int rename(const char* from, const char* to) {
  return unless_it_fails<int>("rename", to, from, to);
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  return unless_it_fails<int>("linkat", to, from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) { return unless_it_fails<int>("mkdir", path, path, mode); }

int unlink(const char* path) { return unless_it_fails<int>("unlink", path, path); }

int remove(const char* path) { return unless_it_fails<int>("remove", path, path); }

int rmdir(const char* path) { return unless_it_fails<int>("rmdir", path, path); }

int unlinkat(int folder, const char* path, int flags) {
  return unless_it_fails<int>("unlinkat", folder, folder, path, flags);
}

// As a file system without locks has it, where PARADYSE_FAULT_LOCKS says so.
int flock(int descriptor, int operation) {
  if (*variable("PARADYSE_FAULT_LOCKS") != '\0' && Named(descriptor).is_below()) {
    errno = ENOLCK;
    return -1;
  }
  return real<int(int, int)>("flock")(descriptor, operation);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (open_fails(path, flags)) {
    return failed();
  }
  return real<int(int, const char*, int, ...)>("openat")(folder, path, flags, mode);
}

}  // extern "C"
