// Whole numbers of a micro-batch that kernels read: positions, labels, which tokens look up a row.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include <ATen/ATen.h>

namespace paradyse {

// Each list is made once and on a device sent once, whichever ops of whichever layers ask for it,
// through one pinned buffer, so that the host never waits.  Of the memory nothing is counted
// (HostScope): a few numbers a token.
class BatchNumbers {
 public:
  // What a list is of; then what tells lists of one kind apart.
  enum class Kind { positions, places, tokens, rows, labels, looking_up, looked_up, lengths };
  struct Key {
    Kind kind;
    std::vector<std::int64_t> which = {};

    friend auto operator<=>(const Key&, const Key&) = default;
  };

  // `expected`: numbers of all lists together, about.
  BatchNumbers(c10::Device device, std::int64_t expected) : device_(device), room_(expected) {}

  // [n] int64 on the device: the list of this key, which `make` gives where it is not there yet.
  at::Tensor of(const Key& key, const std::function<std::vector<std::int64_t>()>& make);
  // [n] int32 on the device: this list, whose numbers are that small.
  at::Tensor narrow(const std::vector<std::int64_t>& list);

 private:
  at::Tensor sent(const std::vector<std::int64_t>& numbers);

  c10::Device device_;
  std::int64_t room_;
  std::map<Key, at::Tensor> lists_;
  std::deque<std::vector<std::int64_t>> on_host_;  // what lists of the CPU lie in
  at::Tensor pinned_;                              // to be filled, from its front
};

}  // namespace paradyse
