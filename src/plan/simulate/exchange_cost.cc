#include "src/plan/simulate/exchange_cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

// --- the smallest tensor that is cut so ----------------------------------------------------------

// The largest number that divides all places where the dim is cut; its size, if that is 0, is 1.
std::int64_t unit_of(const Dim& a, const Dim& b) {
  std::int64_t unit = a.size;
  for (const Dim* dim : {&a, &b}) {
    for (const Piece& piece : dim->cuts) {
      for (const Interval& interval : piece) {
        unit = std::gcd(std::gcd(unit, interval.begin), interval.end);
      }
    }
  }
  return unit == 0 ? 1 : unit;
}

Dim divided(Dim dim, std::int64_t unit) {
  dim.size /= unit;
  for (Piece& piece : dim.cuts) {
    for (Interval& interval : piece) {
      interval = {interval.begin / unit, interval.end / unit};
    }
  }
  return dim;
}

// [dim of `from`] The steps in which both layouts cut it.
std::vector<std::int64_t> units_of(const Layout& from, const Layout& to) {
  std::vector<std::int64_t> units;
  units.reserve(from.dims.size());
  for (const Dim& dim : from.dims) {
    units.push_back(unit_of(dim, to.dims[to.place(dim.name)]));
  }
  return units;
}

void add_to_key(const Dim& dim, std::int64_t unit, std::vector<std::int64_t>& key) {
  key.push_back(dim.size / unit);
  key.push_back(static_cast<std::int64_t>(dim.cuts.size()));
  for (const Piece& piece : dim.cuts) {
    key.push_back(static_cast<std::int64_t>(piece.size()));
    for (const Interval& interval : piece) {
      key.push_back(interval.begin / unit);
      key.push_back(interval.end / unit);
    }
  }
}

// --- who meets, and what passes ------------------------------------------------------------------

const Link& slowest_link(const std::vector<int>& ranks, const Cluster& cluster) {
  const bool one_node = std::ranges::all_of(
      ranks, [&](int rank) { return cluster.node(rank) == cluster.node(ranks.front()); });
  return one_node ? cluster.inside_node : cluster.between_nodes;
}

// Who exchanges with whom, directly or by way of others.
class Meetings {
 public:
  explicit Meetings(std::size_t ranks) : parent_(ranks) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  void join(int a, int b) { parent_[idx(find(a))] = find(b); }
  int find(int rank) {
    auto r = idx(rank);
    while (parent_[r] != static_cast<int>(r)) {
      parent_[r] = parent_[idx(parent_[r])];
      r = idx(parent_[r]);
    }
    return static_cast<int>(r);
  }

 private:
  std::vector<int> parent_;
};

// Elements that pass a member of an exchange, and its node.
struct Passing {
  double in = 0;        // all that it gets from others, or (sums) gives to them
  double out = 0;       // what others want of it, once however many want it
  double node_in = 0;   // of the first of a meeting on its node: what enters that, once
  double node_out = 0;  // what other nodes want of this one, once for all of them
};

// What is read of a source, and the node that wants it (by its first member; where each rank is
// sent its own copy, by that rank).
struct Wanted {
  int source = 0;
  Region region = {};
  std::size_t node = 0;

  auto operator<=>(const Wanted&) const = default;
};

// [rank of the table]; `ranks`: their numbers in the cluster, `meetings`: who belongs together.
// What several want passes any link once, as in NCCL's rings and trees: one hands it to the next;
// or, between nodes, once for each of them.
std::vector<Passing> passing(
    const Transfer& table,
    const std::vector<int>& ranks,
    const std::vector<int>& meetings,
    const Cluster& cluster) {
  std::vector<Passing> all(ranks.size());
  std::vector<std::size_t> node(ranks.size());  // [rank] the first of its meeting on its node
  std::map<std::pair<int, int>, std::size_t> first;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    node[r] = first.emplace(std::pair(meetings[r], cluster.node(ranks[r])), r).first->second;
  }
  std::vector<Wanted> wanted;
  for (const Box& box : table.boxes) {
    if (box.source != box.destination) {
      const auto to = idx(box.destination);
      all[to].in += static_cast<double>(box.elements());
      const bool own = cluster.copy_for_each_rank && node[to] != node[idx(box.source)];
      wanted.push_back({box.source, source_region(box), own ? to : node[to]});
    }
  }
  std::ranges::sort(wanted);
  wanted.erase(std::ranges::unique(wanted).begin(), wanted.end());
  const Wanted* last = nullptr;  // of the same elements
  bool left = false;             // its node
  for (const Wanted& one : wanted) {
    const auto from = idx(one.source);
    const auto elements = static_cast<double>(one.region.elements());
    const bool fresh = last == nullptr || last->source != one.source || last->region != one.region;
    last = &one;
    left = left && !fresh;
    all[from].out += fresh ? elements : 0;
    if (node[one.node] != node[from]) {
      all[node[one.node]].node_in += elements;
      all[node[from]].node_out += left && !cluster.copy_for_each_rank ? 0 : elements;
      left = true;
    }
  }
  return all;
}

// [node of the cluster] Elements that pass between it and others.
std::map<int, double> through_nodes(
    const std::vector<Passing>& all,
    const std::vector<int>& members,
    const std::vector<int>& ranks,
    const Cluster& cluster) {
  std::map<int, double> through;
  for (const int r : members) {
    const Passing& one = all[idx(r)];
    through[cluster.node(ranks[idx(r)])] += std::max(one.node_in, one.node_out);
  }
  return through;
}

// Seconds on the wire until all `members` (of the table) have what they want, at a byte an element.
// The links of a node's members to other nodes work together; or all that meet at once share their
// node's, over which `through_all` passes.
double wire_seconds(
    const std::vector<Passing>& all,
    const std::vector<int>& members,
    const std::vector<int>& ranks,
    const std::map<int, double>& through_all,
    const Cluster& cluster) {
  std::map<int, int> members_of_node;
  for (const int r : members) {
    ++members_of_node[cluster.node(ranks[idx(r)])];
  }
  double longest = 0;
  for (const int r : members) {
    const Passing& one = all[idx(r)];
    if (members_of_node[cluster.node(ranks[idx(r)])] > 1) {
      longest = std::max(longest, std::max(one.in, one.out) / cluster.inside_node.bytes_per_second);
    }
  }
  for (const auto& [node, elements] : through_nodes(all, members, ranks, cluster)) {
    if (elements > 0) {
      const double passing =
          cluster.node_shares_link ? through_all.at(node) : elements / members_of_node[node];
      longest = std::max(longest, passing / cluster.between_nodes.bytes_per_second);
    }
  }
  return longest;
}

// [rank] the number of its meeting, in the order of their first ranks.
std::vector<int> meetings_of(const Transfer& table, std::size_t ranks, bool together) {
  if (together) {
    return std::vector<int>(ranks, 0);
  }
  Meetings joined(ranks);
  for (const Box& box : table.boxes) {
    joined.join(box.source, box.destination);
  }
  std::vector<int> number(ranks, -1);  // [representative]
  std::vector<int> found;
  int count = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    int& mine = number[idx(joined.find(static_cast<int>(r)))];
    if (mine < 0) {
      mine = count++;
    }
    found.push_back(mine);
  }
  return found;
}

// [rank] What each hands to others, or gets from them (`transposed`).
std::vector<SentByNode> sent_by_node(
    const Transfer& table, const std::vector<int>& ranks, bool transposed, const Cluster& cluster) {
  std::vector<std::map<int, std::int64_t>> to(ranks.size());  // [rank] by rank
  for (const Box& box : table.boxes) {
    if (box.source != box.destination) {
      const int from = transposed ? box.destination : box.source;
      to[idx(from)][transposed ? box.source : box.destination] += box.elements();
    }
  }
  std::vector<SentByNode> all(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::map<int, std::int64_t> nodes;
    for (const auto& [other, elements] : to[r]) {
      all[r].elements += elements;
      ++all[r].messages;
      nodes[cluster.node(ranks[idx(other)]) - cluster.node(ranks[0])] += elements;
    }
    all[r].to_node.assign(nodes.begin(), nodes.end());
  }
  return all;
}

}  // namespace

const ExchangeCosts::Known& ExchangeCosts::known(
    const Exchange& exchange, const std::vector<int>& ranks, bool together) {
  const Layout& from = exchange.copy->from();
  const Layout& to = exchange.copy->to();
  const std::vector<std::int64_t> units = units_of(from, to);
  scale_ = std::accumulate(units.begin(), units.end(), std::int64_t{1}, std::multiplies<>());
  key_.clear();
  key_.push_back(together ? 1 : 0);
  for (const int rank : ranks) {
    key_.push_back(cluster_.node(rank) - cluster_.node(ranks.front()));
  }
  for (std::size_t d = 0; d < from.dims.size(); ++d) {
    add_to_key(from.dims[d], units[d], key_);
  }
  for (const Dim& dim : to.dims) {
    const std::size_t place = from.place(dim.name);
    key_.push_back(static_cast<std::int64_t>(place));
    add_to_key(dim, units[place], key_);
  }
  const auto [found, fresh] = known_.try_emplace(key_);
  Known& known = found->second;
  if (!fresh) {
    return known;
  }
  Layout small_from = from;
  Layout small_to = to;
  for (std::size_t d = 0; d < from.dims.size(); ++d) {
    small_from.dims[d] = divided(from.dims[d], units[d]);
    Dim& dim = small_to.dims[to.place(from.dims[d].name)];
    dim = divided(dim, units[d]);
  }
  const Transfer table = transfer(small_from, small_to, static_cast<int>(ranks.size()));
  known.meeting_of = meetings_of(table, ranks.size(), together);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto mine = idx(known.meeting_of[r]);
    known.meetings.resize(std::max(known.meetings.size(), mine + 1));
    known.meetings[mine].push_back(static_cast<int>(r));
  }
  for (const bool transposed : {false, true}) {
    known.sent[transposed ? 1 : 0] = sent_by_node(table, ranks, transposed, cluster_);
  }
  const std::vector<Passing> all = passing(table, ranks, known.meeting_of, cluster_);
  std::vector<int> everyone(ranks.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::map<int, double> through_all = through_nodes(all, everyone, ranks, cluster_);
  for (const std::vector<int>& members : known.meetings) {
    std::vector<int> of_cluster;
    of_cluster.reserve(members.size());
    for (const int r : members) {
      of_cluster.push_back(ranks[idx(r)]);
    }
    known.wire_seconds.push_back(wire_seconds(all, members, ranks, through_all, cluster_));
    known.latencies.push_back(collective_seconds(
        slowest_link(of_cluster, cluster_), static_cast<int>(members.size()), 0));
  }
  return known;
}

ExchangeCost ExchangeCosts::cost(const Exchange& exchange, const std::vector<int>& ranks) {
  const Known& one = known(exchange, ranks, /*together=*/false);
  ExchangeCost cost{.meetings = one.meetings, .meeting_of = one.meeting_of, .seconds = {}};
  const auto bytes = static_cast<double>(scale_ * exchange.element_bytes);
  for (std::size_t m = 0; m < one.meetings.size(); ++m) {
    cost.seconds.push_back(bytes * one.wire_seconds[m] + one.latencies[m]);
  }
  return cost;
}

double ExchangeCosts::together(const Exchange& exchange, const std::vector<int>& ranks) {
  const Known& one = known(exchange, ranks, /*together=*/true);
  return static_cast<double>(scale_ * exchange.element_bytes) * one.wire_seconds[0] +
         one.latencies[0];
}

std::vector<SentByNode> ExchangeCosts::sent(
    const Exchange& exchange, const std::vector<int>& ranks) {
  const Known& one = known(exchange, ranks, /*together=*/false);
  std::vector<SentByNode> all = one.sent[exchange.transposed ? 1 : 0];
  for (SentByNode& mine : all) {
    mine.elements *= scale_;
    for (auto& [node, elements] : mine.to_node) {
      node += cluster_.node(ranks[0]);
      elements *= scale_;
    }
  }
  return all;
}

double passing_seconds(const Link& link, std::int64_t bytes) {
  return bytes == 0 ? 0 : link.latency_seconds + static_cast<double>(bytes) / link.bytes_per_second;
}

double collective_seconds(const Link& slowest, int ranks, double wire_seconds) {
  return ranks < 2 ? 0 : wire_seconds + slowest.latency_seconds * std::ceil(std::log2(ranks));
}

}  // namespace paradyse
