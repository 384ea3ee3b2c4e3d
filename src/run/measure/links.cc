#include "src/run/measure/links.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include <c10/core/InferenceMode.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/transfer.h"
#include "src/run/device/device.h"
#include "src/run/device/streams.h"
#include "src/run/measure/measure.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds in which each rank of `group` sends so many elements to each other one: the median.
double gather_seconds(Communicator& group, std::int64_t elements, c10::Device device) {
  constexpr int kTimes = 5;
  const Layout pieces = matrix(
      "rows", {elements * group.size(), 1}, even_cuts(elements * group.size(), group.size()));
  const Transfer table = transfer(pieces, pieces.whole(), group.size());
  const auto options = at::TensorOptions(at::kFloat).device(device);
  const at::Tensor mine = at::ones({elements, 1}, options);
  const at::Tensor all = at::empty({elements * group.size(), 1}, options);
  std::vector<double> seconds;
  for (int i = 0; i < kTimes; ++i) {
    const auto begin = Clock::now();
    group.exchange(mine, all, table, {.op = "measure links", .part = ""})->wait();
    synchronize(device);
    seconds.push_back(seconds_since(begin));
  }
  return median(std::move(seconds));
}

// Of a rank.
NodeLinks::Link link_of(Communicator& group, c10::Device device) {
  constexpr std::int64_t kSmall = 256;
  constexpr std::int64_t kLarge = std::int64_t{1} << 16;
  if (group.size() == 1) {
    return {.bytes_per_second = 1e12, .latency_seconds = 0};  // nothing is sent
  }
  const double small = gather_seconds(group, kSmall, device);
  const double large = gather_seconds(group, kLarge, device);
  const auto bytes = static_cast<double>((kLarge - kSmall) * 4 * (group.size() - 1));
  // On a machine so busy that large is no slower than small, all of its time counts.
  return {
      .bytes_per_second = bytes / (large > small ? large - small : std::max(large, 1e-9)),
      .latency_seconds = small};
}

}  // namespace

std::optional<NodeLinks> measure_links(int ranks, Backend& backend, c10::Device device) {
  const int node = backend.ranks_per_node(ranks);
  NodeLinks links;
  if (node == ranks) {
    return std::nullopt;
  }
  backend.run(ranks, [&](Communicators& communicators) {
    const c10::InferenceMode no_autograd;
    const DeviceScope computing(device);
    const int rank = communicators.rank();
    const int first = rank / node * node;
    std::vector<int> beside;
    for (int r = first; r < first + node; ++r) {
      beside.push_back(r);
    }
    std::vector<int> across;
    for (int r = rank % node; r < ranks; r += node) {
      across.push_back(r);
    }
    const NodeLinks::Link inside = link_of(communicators.group(beside), device);
    communicators.world().barrier({.op = "measure links", .part = ""});
    const NodeLinks::Link between = link_of(communicators.group(across), device);
    communicators.world().barrier({.op = "measure links", .part = ""});
    // one of each node, the others wait: as fast as before, or as all of its node were together
    const NodeLinks::Link alone =
        rank == first ? link_of(communicators.group(across), device) : between;
    communicators.world().barrier({.op = "measure links", .part = ""});
    if (rank == backend.first_rank()) {
      links.inside_node = inside;
      links.between_nodes = between;
      links.node_shares_link =
          node > 1 && alone.bytes_per_second > between.bytes_per_second * std::sqrt(node);
    }
  });
  return links;
}

}  // namespace paradyse
