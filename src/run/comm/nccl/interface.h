// Which network interface NCCL takes.  No NCCL is needed to read this.
#pragma once

#include <optional>
#include <string>

namespace paradyse::nccl {

// What NCCL_SOCKET_IFNAME is to become: the interface of --interface, and no other whose name
// begins like it.  Nothing where none was named, or the user has set the variable (`now`, nullptr
// where it is not there).
inline std::optional<std::string> socket_interface(const std::string& named, const char* now) {
  return named.empty() || now != nullptr ? std::nullopt : std::optional<std::string>("=" + named);
}

}  // namespace paradyse::nccl
