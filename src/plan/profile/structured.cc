#include "src/plan/profile/structured.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <vector>

#include <Eigen/QR>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/median.h"
#include "src/plan/cost/node_cores.h"
#include "src/plan/profile/held_out.h"
#include "src/plan/profile/nnls.h"

namespace paradyse {

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;
using Terms = std::array<double, Rates::kCount>;

Terms terms_of(const Amounts& amounts) {
  Terms terms{};
  std::copy(amounts.values.begin(), amounts.values.end(), terms.begin());
  const double touched = amounts.values[Amounts::touched_bytes];
  const double calls = amounts.values[Amounts::calls];
  terms[Rates::kSpilled] = std::max(0.0, touched - Rates::kCachedBytes * calls);
  const bool any = std::any_of(
      amounts.values.begin(), amounts.values.end(), [](double amount) { return amount > 0; });
  terms[Rates::kPhase] = any ? 1 : 0;
  return terms;
}

// A phase of a probe: its wall seconds, or what it used of a processor.
struct Row {
  Terms terms{};
  double seconds = 0;
  double weight = 0;
  bool processor = false;
};
using ProfileRows = std::vector<Row>;
using PhaseRows = std::array<ProfileRows, kPartPhases>;

// Errors count relative to the seconds of the phase; of one that is a small share of its part,
// relative to that share of the part.
constexpr double kSmallShare = 0.1;

void add_rows(const PartProbe& probe, PhaseRows& rows) {
  const double total = total_seconds(probe);
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    const Row row{
        .terms = terms_of(probe.work.phases[i]),
        .seconds = probe.seconds[i].median,
        .weight = 1 / std::max(probe.seconds[i].median, kSmallShare * total)};
    if (row.terms[Rates::kPhase] > 0) {
      rows[i].push_back(row);
      if (probe.processor_seconds) {
        Row used = row;
        used.processor = true;
        used.seconds = (*probe.processor_seconds)[i];
        rows[i].push_back(used);
      }
    }
  }
}

ProfileRows all_phases(const PhaseRows& rows) {
  ProfileRows all;
  for (const ProfileRows& phase : rows) {
    all.insert(all.end(), phase.begin(), phase.end());
  }
  return all;
}

// Rates are counted in units of the one they are drawn to, or of this share of the prior where that
// is more: a fit that found next to nothing is not much harder to leave than one that found some.
constexpr double kLeastUnit = 0.1;
// Where few probes spill, and those little, noise alone can make the rate of spilled bytes many
// times too high, which shows at lengths that spill all they touch.  So it is drawn to where it
// comes from as if such a share of the rows had said that, with the others' noise.
constexpr double kDoubtOfSpilled = 0.05;
// No rate falls below this share of its unit: seconds rise with every amount.
constexpr double kLeastShare = 1e-3;

// Terms whose seconds are waiting in part: what they use of a processor is a rate of its own.
constexpr std::array<std::size_t, 7> kWaiting = {
    Amounts::sent_bytes,
    Amounts::collectives,
    Amounts::bytes_across_nodes,
    Amounts::collectives_across_nodes,
    Amounts::weight_bytes,
    Amounts::weight_collectives,
    Rates::kPhase};

// The least sum of (relative error)^2 + pull n sum ((rate - towards) / unit)^2 over n rows.  All
// that is computed takes the same of a processor as of the wall's time; of what is waited for the
// share that a processor works is unknown, and found with the rates.
Rates fit_rates(const ProfileRows& rows, const Rates& towards, double pull, const Rates& prior) {
  constexpr auto kRates = static_cast<Index>(Rates::kCount);
  const bool processor = std::ranges::any_of(rows, &Row::processor);
  const Index unknowns = kRates + (processor ? static_cast<Index>(kWaiting.size()) : 0);
  const auto n = static_cast<Index>(rows.size());
  if (n == 0) {
    return towards;
  }
  Rates units = towards;
  for (std::size_t i = 0; i < Rates::kCount; ++i) {
    units.values[i] = std::max(units.values[i], kLeastUnit * prior.values[i]);
  }
  // Unknown: units by which a rate exceeds the least one.
  MatrixXd A = MatrixXd::Zero(n + unknowns, unknowns);
  VectorXd b(n + unknowns);
  for (Index i = 0; i < n; ++i) {
    const Row& row = rows[idx(i)];
    for (Index j = 0; j < kRates; ++j) {
      const auto at = idx(j);
      A(i, j) = row.weight * row.terms[at] * units.values[at];
    }
    for (std::size_t w = 0; row.processor && w < kWaiting.size(); ++w) {
      std::swap(A(i, static_cast<Index>(kWaiting[w])), A(i, kRates + static_cast<Index>(w)));
    }
    b(i) = row.weight * row.seconds - kLeastShare * A.row(i).sum();
  }
  const double strength = std::sqrt(pull * static_cast<double>(n));
  A.bottomRows(unknowns).diagonal().setConstant(strength);
  for (Index j = 0; j < unknowns; ++j) {
    const std::size_t at = j < kRates ? idx(j) : kWaiting[idx(j - kRates)];
    b(n + j) = strength * (towards.values[at] / units.values[at] - kLeastShare);
  }
  // The same least squares in as many rows as there are unknowns, which is what is solved often.
  const Eigen::HouseholderQR<MatrixXd> qr(A);
  VectorXd turned = qr.householderQ().transpose() * b;
  const double noise = turned.tail(n).squaredNorm();  // of all rows, squared
  MatrixXd small = MatrixXd::Zero(unknowns + 1, unknowns);
  small.topRows(unknowns) = qr.matrixQR().topRows(unknowns).triangularView<Eigen::Upper>();
  constexpr auto kSpilled = static_cast<Index>(Rates::kSpilled);
  const double doubt = std::sqrt(kDoubtOfSpilled * noise);
  small(unknowns, kSpilled) = doubt;
  turned(unknowns) =
      doubt * (towards.values[Rates::kSpilled] / units.values[Rates::kSpilled] - kLeastShare);
  turned.conservativeResize(unknowns + 1);
  const VectorXd shares = nonnegative_least_squares(small, turned);
  Rates rates;
  for (Index j = 0; j < kRates; ++j) {
    const auto at = idx(j);
    rates.values[at] = (kLeastShare + shares(j)) * units.values[at];
  }
  return rates;
}

// Breaks ties alone.
constexpr double kJointPull = 1e-6;

struct Joint {
  Rates all;         // phases
  FittedRates each;  // phase
};

Joint fit_joint(const PhaseRows& rows, const Rates& towards, const Pull& pull, const Rates& prior) {
  Joint joint{.all = fit_rates(all_phases(rows), towards, pull.strategy, prior), .each = {}};
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    joint.each.rates[i] =
        pull.one_for_all_phases ? joint.all : fit_rates(rows[i], joint.all, pull.phase, prior);
  }
  return joint;
}

double kernel_rate(const Profile& profile, const std::string& kernel, double per_second) {
  std::vector<double> rates;
  for (const KernelProbe& probe : profile.kernels) {
    if (probe.kernel == kernel && probe.flops > 0 && probe.seconds.median > 0) {
      rates.push_back(probe.seconds.median / probe.flops);
    }
  }
  return rates.empty() ? 1 / per_second : median(std::move(rates));
}

// Whether a strategy was measured in groups of more than one size.
bool several_sizes(std::span<const PartProbe> probes) {
  std::map<std::pair<std::string, std::string>, int> sizes;
  return std::ranges::any_of(probes, [&](const PartProbe& probe) {
    return sizes.try_emplace({probe.part, probe.strategy}, probe.ranks).first->second !=
           probe.ranks;
  });
}

// Those of which each strategy takes the one with the least error on lengths left out.
std::vector<Pull> pulls(bool several_sizes) {
  std::vector<Pull> pulls;
  for (const bool by_size : {false, true}) {
    if (by_size && !several_sizes) {
      continue;
    }
    for (const double strategy : {1e-8, 1e-5, 1e-3, 1e-1}) {
      pulls.push_back({.strategy = strategy, .one_for_all_phases = true, .by_size = by_size});
      for (const double phase : {1e-8, 1e-4, 1e-2}) {
        pulls.push_back({.strategy = strategy, .phase = phase, .by_size = by_size});
      }
    }
  }
  return pulls;
}

}  // namespace

double Rates::seconds(const Amounts& amounts) const {
  const Terms terms = terms_of(amounts);
  return std::inner_product(terms.begin(), terms.end(), values.begin(), 0.0);
}

const FittedRates& Structured::rates_for(
    const std::string& part, const std::string& strategy) const {
  const auto own = strategies.find({part, strategy});
  if (own != strategies.end()) {
    return own->second;
  }
  const auto joint = parts.find(part);
  return joint != parts.end() ? joint->second : machine;
}

namespace {

PartSeconds seconds_by(const FittedRates& fitted, const PartQuestion& question) {
  PartSeconds result;
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    result.phases[i] = fitted.rates[i].seconds(question.work.phases[i]);
  }
  result.error = question.length <= fitted.longest ? fitted.error_inside : fitted.error_beyond;
  return result;
}

}  // namespace

PartSeconds Structured::seconds(const PartQuestion& question) const {
  const FittedRates& of_all = rates_for(question.part, question.strategy);
  const auto known = sizes.find({question.part, question.strategy});
  if (known == sizes.end()) {
    return seconds_by(of_all, question);
  }
  const std::map<int, FittedRates>& rates = known->second.rates;
  const auto above = rates.lower_bound(question.ranks);
  if (above == rates.end() || (above == rates.begin() && above->first != question.ranks)) {
    return seconds_by(of_all, question);
  }
  const PartSeconds more = seconds_by(above->second, question);
  if (above->first == question.ranks) {
    return more;
  }
  const auto below = std::prev(above);
  const PartSeconds less = seconds_by(below->second, question);
  const double share = std::log(static_cast<double>(question.ranks) / below->first) /
                       std::log(static_cast<double>(above->first) / below->first);
  PartSeconds between;
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    between.phases[i] = std::lerp(less.phases[i], more.phases[i], share);
  }
  between.error = std::max(less.error, more.error);
  return between;
}

Rates prior_rates(const Profile& profile) {
  const MachineNumbers usual;
  Rates rates{
      {kernel_rate(profile, "matmul", usual.matmul_flops_per_second),
       kernel_rate(profile, "attention", usual.attention_flops_per_second),
       1 / usual.touched_bytes_per_second,
       usual.call_seconds,
       1 / usual.sent_bytes_per_second,
       usual.collective_seconds,
       1 / usual.sent_bytes_per_second,
       usual.collective_seconds,
       1 / usual.sent_bytes_per_second,
       usual.collective_seconds,
       1 / usual.touched_bytes_per_second,
       usual.call_seconds}};
  // A collective of p ranks on c cores is p / c collectives a core, as PartProbe::work counts; the
  // ranks of other groups wait.
  const NodeCores cores = {
      .cores = profile.header.cores,
      .ranks = profile.header.ranks,
      .ranks_per_node = profile.header.ranks_per_node};
  using Probes = std::vector<const CollectiveProbe*>;
  Probes inside;  // of a node
  Probes across;
  Probes of_all;  // weights travel among all ranks
  for (const CollectiveProbe& probe : profile.collectives) {
    if (probe.ranks > 1 && probe.seconds.median > 0) {
      (probe.ranks > profile.header.ranks_per_node ? across : inside).push_back(&probe);
      if (probe.ranks == profile.header.ranks) {
        of_all.push_back(&probe);
      }
    }
  }
  const auto fit_links = [&](const Probes& measured, Amounts::Of bytes, Amounts::Of collectives) {
    if (measured.size() < 2) {
      return;
    }
    MatrixXd A(static_cast<Index>(measured.size()), 2);
    for (Index i = 0; i < A.rows(); ++i) {
      const CollectiveProbe& probe = *measured[idx(i)];
      const double a_core =
          std::max(1.0, double(probe.ranks) / cores.of_group(probe.ranks, /*across_nodes=*/false));
      A(i, 0) =
          a_core * static_cast<double>(probe.bytes) * (probe.ranks - 1) / probe.seconds.median;
      A(i, 1) = a_core / probe.seconds.median;
    }
    const VectorXd x = nonnegative_least_squares(A, VectorXd::Ones(A.rows()));
    rates.values[bytes] = std::max(x(0), kLeastShare * rates.values[bytes]);
    rates.values[collectives] = std::max(x(1), kLeastShare * rates.values[collectives]);
  };
  fit_links(inside, Amounts::sent_bytes, Amounts::collectives);
  fit_links(across, Amounts::bytes_across_nodes, Amounts::collectives_across_nodes);
  fit_links(of_all, Amounts::weight_bytes, Amounts::weight_collectives);
  return rates;
}

std::shared_ptr<Structured> fit_structured(
    std::span<const PartProbe> probes, const Rates& prior, const Pull& pull) {
  PhaseRows of_machine;
  std::map<std::string, PhaseRows> of_part;
  auto model = std::make_shared<Structured>();
  std::map<std::pair<std::string, std::string>, PhaseRows> of_strategy;
  std::map<std::pair<std::string, std::string>, std::map<int, std::pair<PhaseRows, std::int64_t>>>
      of_size;  // and the longest length of it
  for (const PartProbe& probe : probes) {
    add_rows(probe, of_machine);
    add_rows(probe, of_part[probe.part]);
    add_rows(probe, of_strategy[{probe.part, probe.strategy}]);
    std::pair<PhaseRows, std::int64_t>& of_this =
        of_size[{probe.part, probe.strategy}][probe.ranks];
    add_rows(probe, of_this.first);
    of_this.second = std::max(of_this.second, probe.length);
    for (std::int64_t* longest :
         {&model->machine.longest,
          &model->parts[probe.part].longest,
          &model->strategies[{probe.part, probe.strategy}].longest}) {
      *longest = std::max(*longest, probe.length);
    }
  }
  const auto fit =
      [&](const PhaseRows& rows, const Rates& towards, const Pull& by, FittedRates& to) {
        Joint joint = fit_joint(rows, towards, by, prior);
        to.rates = joint.each.rates;
        return joint.all;
      };
  const Pull joint{.strategy = kJointPull};
  const Rates machine = fit(of_machine, prior, joint, model->machine);
  std::map<std::string, Rates> parts;
  for (const auto& [part, rows] : of_part) {
    parts[part] = fit(rows, machine, joint, model->parts[part]);
  }
  for (const auto& [name, rows] : of_strategy) {
    const Rates strategy = fit(rows, parts[name.first], pull, model->strategies[name]);
    if (!pull.by_size || of_size[name].size() < 2) {
      continue;
    }
    for (const auto& [ranks, its] : of_size[name]) {
      FittedRates& rates = model->sizes[name].rates[ranks];
      rates.longest = its.second;
      fit(its.first, strategy, pull, rates);
    }
  }
  return model;
}

std::shared_ptr<Structured> fit_structured(std::span<const PartProbe> probes, const Rates& prior) {
  struct Best {
    double error = std::numeric_limits<double>::infinity();
    FittedRates rates;
    Structured::Sizes sizes;
  };
  std::map<std::pair<std::string, std::string>, Best> best;
  std::shared_ptr<Structured> model;
  for (const Pull& pull : pulls(several_sizes(probes))) {
    model = fit_structured(probes, prior, pull);
    std::map<std::pair<std::string, std::string>, ErrorSums> errors;
    const auto unseen = held_out(
        probes, [&](std::span<const PartProbe> seen) { return fit_structured(seen, prior, pull); });
    for (const HeldOut& one : unseen) {
      errors[{probes[one.probe].part, probes[one.probe].strategy}].add(one);
    }
    for (const auto& [name, rates] : model->strategies) {
      const double error = errors[name].mean();
      if (error < best[name].error) {
        const auto its = model->sizes.find(name);
        best[name] = {
            .error = error,
            .rates = rates,
            .sizes = its == model->sizes.end() ? Structured::Sizes{} : its->second};
      }
    }
  }
  model->sizes.clear();
  for (auto& [name, rates] : model->strategies) {
    rates = best[name].rates;
    if (!best[name].sizes.rates.empty()) {
      model->sizes[name] = best[name].sizes;
    }
  }
  return model;
}

}  // namespace paradyse
