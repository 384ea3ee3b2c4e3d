#include "src/run/comm/rendezvous/sealed_off.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include <linux/filter.h>
#include <netdb.h>
#include <sys/socket.h>

namespace paradyse::rendezvous {
namespace {

// None where they cannot be listed.
std::optional<std::vector<int>> listeners() {
  std::vector<int> found;
  std::error_code failed;
  const std::filesystem::directory_iterator open("/proc/self/fd", failed);
  if (failed) {
    return std::nullopt;
  }
  for (const auto& entry : open) {
    const std::string name = entry.path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0) {
      found.push_back(fd);
    }
  }
  return found;
}

bool is_at(int fd, const std::string& address) {
  sockaddr_storage mine{};
  socklen_t length = sizeof(mine);
  char text[NI_MAXHOST];
  return getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0 &&
         getnameinfo(
             reinterpret_cast<sockaddr*>(&mine),
             length,
             text,
             sizeof(text),
             nullptr,
             0,
             NI_NUMERICHOST) == 0 &&
         address == text;
}

}  // namespace

ListenersSince::ListenersSince() : before_(listeners()) {}

void ListenersSince::seal_off_new(const std::string& address) const {
  const auto now = listeners();
  if (!before_ || !now) {
    return;
  }
  for (const int fd : *now) {
    if (std::ranges::find(*before_, fd) != before_->end() || !is_at(fd, address)) {
      continue;
    }
    sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);  // of each packet, no byte
    const sock_fprog program{.len = 1, .filter = &drop};
    setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
  }
}

}  // namespace paradyse::rendezvous
