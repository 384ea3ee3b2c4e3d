// Unlike devices: which part of every document each rank of a group gets.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/program/bodies.h"
#include "src/plan/simulate/op_cost.h"

namespace paradyse {

std::vector<double> proportional_shares(
    std::span<const double> seconds_per_share, std::span<const double> largest_share) {
  const std::size_t p = seconds_per_share.size();
  std::vector<double> limits;
  for (const double limit : largest_share) {
    limits.push_back(std::max(limit, 0.0));
  }
  const double room = std::accumulate(limits.begin(), limits.end(), 0.0);
  std::vector<double> shares(p, 1.0 / static_cast<double>(p));
  if (room < 1) {
    for (std::size_t r = 0; r < p && room > 0; ++r) {
      shares[r] = limits[r] / room;
    }
    return shares;
  }
  // Whoever would get more than its limit gets that; the others share the rest.
  std::vector<bool> full(p, false);
  for (bool changed = true; changed;) {
    changed = false;
    double left = 1;
    double speed = 0;
    for (std::size_t r = 0; r < p; ++r) {
      left -= full[r] ? limits[r] : 0;
      speed += full[r] ? 0 : 1 / seconds_per_share[r];
    }
    for (std::size_t r = 0; r < p; ++r) {
      shares[r] = full[r] ? limits[r] : left / seconds_per_share[r] / speed;
    }
    for (std::size_t r = 0; r < p; ++r) {
      if (!full[r] && shares[r] > limits[r]) {
        full[r] = true;
        changed = true;
      }
    }
  }
  return shares;
}

namespace {

// What the ranks of a group compute and hold when its documents are cut like this.
struct Burden {
  std::vector<double> seconds;
  std::vector<std::int64_t> peak_bytes;
};

class Scales {
 public:
  Scales(
      const std::vector<int>& ranks,
      const std::vector<LayerChoice>& layers,
      int weight_domain,
      Messages messages,
      const Model& model,
      const Cluster& cluster,
      const SimulationOptions& options)
      : layers_(layers),
        messages_(messages),
        model_(model),
        cluster_(cluster),
        options_(options),
        seats_{
            .ranks = ranks,
            .domain_first = ranks.front() / weight_domain * weight_domain,
            .domain = weight_domain} {}

  [[nodiscard]] Burden weigh(
      const std::vector<std::int64_t>& lengths, const std::vector<double>& shares) const {
    const Timeline parts = timeline(
        model_,
        packed(lengths, static_cast<int>(seats_.ranks.size()), model_.causal, shares),
        whole_weights(messages_, seats_.domain) ? 1 : seats_.domain,
        layers_,
        options_.training);
    Burden burden;
    burden.seconds.resize(seats_.ranks.size());
    for (const auto& [body, alike] : bodies(parts)) {
      for (const auto* steps : body->schedule.passes()) {
        for (const ScheduledOp& step : whole(*steps)) {
          for (std::size_t r = 0; r < burden.seconds.size(); ++r) {
            const OpView view{
                body->program,
                body->program.ops[idx(step.op)],
                seats_.seat(r),
                step.adjoint ? Phase::adjoint : Phase::forward,
                options_.precision};
            burden.seconds[r] += static_cast<double>(alike.size()) *
                                 compute_seconds(view, cluster_.device(seats_.ranks[r]));
          }
        }
      }
    }
    for (std::size_t r = 0; r < seats_.ranks.size(); ++r) {
      const Seat seat = seats_.seat(r);
      const std::int64_t base = static_bytes(
          model_,
          seats_.domain,
          seat.domain_rank % seats_.domain,
          options_.precision,
          options_.keeps(),
          messages_);
      burden.peak_bytes.push_back(footprint(parts, seat, options_.precision, base).peak_bytes);
    }
    return burden;
  }

  [[nodiscard]] std::int64_t missing_bytes(const Burden& burden) const {
    std::int64_t most = 0;
    for (std::size_t r = 0; r < burden.peak_bytes.size(); ++r) {
      most = std::max(most, burden.peak_bytes[r] - memory(r));
    }
    return most;
  }
  [[nodiscard]] std::int64_t memory(std::size_t r) const {
    return cluster_.device(seats_.ranks[r]).memory_bytes;
  }

 private:
  const std::vector<LayerChoice>& layers_;
  const Messages messages_;
  const Model model_;
  const Cluster& cluster_;
  const SimulationOptions& options_;
  GroupSeats seats_;
};

}  // namespace

std::vector<double> proportional_shares(
    const std::vector<int>& ranks,
    const std::vector<std::int64_t>& lengths,
    const std::vector<LayerChoice>& layers,
    int weight_domain,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options,
    Messages messages) {
  const std::size_t p = ranks.size();
  const bool alike = std::ranges::all_of(
      ranks, [&](int rank) { return &cluster.device(rank) == &cluster.device(ranks.front()); });
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  if (alike || tokens == 0) {
    return {};
  }
  const Scales scales(ranks, layers, weight_domain, messages, model, cluster, options);
  // What ranks hold grows with their shares, but not from zero, and with those of others: the line
  // through the last two rounds says how much.  The first is through a share of nothing.
  std::vector<double> shares_before(p, 0.0);
  Burden before = scales.weigh(std::vector<std::int64_t>(lengths.size(), 0), {});
  std::vector<double> shares(p, 1.0 / static_cast<double>(p));
  std::vector<double> best;  // even
  std::pair<std::int64_t, double> least;
  constexpr double kLeastShare = 1e-6;  // of a rank without room: plans have no share of nothing
  constexpr int kRounds = 8;  // costs are nearly linear in the shares: later rounds polish
  for (int round = 0; round < kRounds; ++round) {
    Burden burden = scales.weigh(lengths, shares);
    const std::pair found{
        scales.missing_bytes(burden),
        *std::max_element(burden.seconds.begin(), burden.seconds.end())};
    if (round == 0 || found < least) {
      least = found;
      best = round == 0 ? std::vector<double>{} : shares;
    }
    std::vector<double> seconds_per_share;
    std::vector<double> largest;
    for (std::size_t r = 0; r < p; ++r) {
      seconds_per_share.push_back(std::max(burden.seconds[r], 1e-12) / std::max(shares[r], 1e-6));
      const auto grown = static_cast<double>(burden.peak_bytes[r] - before.peak_bytes[r]);
      const double by_share = grown / (shares[r] - shares_before[r]);
      const auto room = static_cast<double>(scales.memory(r) - burden.peak_bytes[r]);
      // less what rounding to whole tokens may add
      const double rounding = 3.0 / static_cast<double>(tokens);
      largest.push_back(
          std::isfinite(by_share) && by_share > 0
              ? shares[r] + room / by_share - rounding
              : (room < 0 ? shares[r] : std::numeric_limits<double>::infinity()));
    }
    shares_before = std::move(shares);
    before = std::move(burden);
    shares = proportional_shares(seconds_per_share, largest);
    for (double& share : shares) {
      share = std::max(share, kLeastShare);
    }
  }
  return best;
}

}  // namespace paradyse
