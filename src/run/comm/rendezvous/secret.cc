#include "src/run/comm/rendezvous/secret.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

namespace paradyse::rendezvous {
namespace {

constexpr std::size_t kMostSecret = 4096;
constexpr const char* kHowToMake = "(umask 077; head -c 32 /dev/urandom | base64 > FILE)";

class OpenFile {
 public:
  // Not one that waits for a writer, as a pipe would.
  explicit OpenFile(const char* name) : fd(open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (fd >= 0) {
      close(fd);
    }
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const int fd;
};

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& why) {
  throw std::invalid_argument(fmt::format("the secret file {}: {}", file.string(), why));
}

}  // namespace

std::string made_secret() {
  if (sodium_init() < 0) {
    throw std::runtime_error("libsodium cannot start: this system gives no random numbers");
  }
  std::array<unsigned char, 32> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

std::string secret_in(const std::filesystem::path& file) {
  const OpenFile opened(file.c_str());
  struct stat is{};
  if (opened.fd < 0 || fstat(opened.fd, &is) != 0) {
    refuse(
        file,
        fmt::format("it cannot be read ({}); make one with {}", std::strerror(errno), kHowToMake));
  }
  // The open file is asked, so that it is the one that is read.
  if (!S_ISREG(is.st_mode)) {
    refuse(file, fmt::format("it is no regular file; make one with {}", kHowToMake));
  }
  if ((is.st_mode & 077U) != 0) {
    refuse(
        file,
        fmt::format(
            "its mode is {:o}, with which other users can read or write it; chmod 600 {} and, "
            "since they may have read it, put another secret there: {}",
            is.st_mode & 07777U,
            file.string(),
            kHowToMake));
  }
  if (is.st_uid != geteuid() && is.st_uid != 0) {
    refuse(
        file,
        fmt::format(
            "it belongs to user {}, and this process runs as user {}: that user knows the secret; "
            "make one of your own with {}",
            is.st_uid,
            geteuid(),
            kHowToMake));
  }
  std::string text(kMostSecret + 1, '\0');
  const ssize_t got = read(opened.fd, text.data(), text.size());
  if (got < 0) {
    refuse(file, fmt::format("it cannot be read ({})", std::strerror(errno)));
  }
  if (got > static_cast<ssize_t>(kMostSecret)) {
    refuse(file, fmt::format("it is longer than {} bytes, which no secret is", kMostSecret));
  }
  text.resize(static_cast<std::size_t>(got));
  constexpr const char* kSpace = " \t\r\n";
  text.erase(text.find_last_not_of(kSpace) + 1);
  text.erase(0, std::min(text.find_first_not_of(kSpace), text.size()));
  expect_secret(text, "the secret file " + file.string());
  return text;
}

void expect_secret(const std::string& secret, const std::string& source) {
  if (secret.size() < kLeastSecret) {
    throw std::invalid_argument(fmt::format(
        "{}: a secret of {} characters can be found by trying; accepted are {} or more, as "
        "`head -c 32 /dev/urandom | base64` makes them",
        source,
        secret.size(),
        kLeastSecret));
  }
  // An environment variable would end at a zero byte.
  if (std::ranges::any_of(secret, [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    throw std::invalid_argument(fmt::format(
        "{}: a secret is one line of text; make it by `head -c 32 /dev/urandom | base64`", source));
  }
}

}  // namespace paradyse::rendezvous
