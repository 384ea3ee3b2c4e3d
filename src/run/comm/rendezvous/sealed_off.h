// Listening sockets of a library, which it goes on listening at and which nobody is to reach.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace paradyse::rendezvous {

// Remembers which sockets this process listens at.
class ListenersSince {
 public:
  ListenersSince();

  // The kernel drops all that arrives from here on at those at `address` that came since; what was
  // accepted before goes on.  (Gloo would end the process once a stranger's connections have used
  // up its file descriptors.)  Nothing where the kernel has no socket filters.
  void seal_off_new(const std::string& address) const;

 private:
  std::optional<std::vector<int>> before_;
};

}  // namespace paradyse::rendezvous
