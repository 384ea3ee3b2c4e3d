#include "src/run/measure/profiler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/session.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/batch/plan_prediction.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/device/device.h"
#include "src/run/execute/gather.h"
#include "src/run/execute/part_times.h"
#include "src/run/execute/within_memory.h"
#include "src/run/kernels/cpu/tile_attention.h"
#include "src/run/measure/attention_kernels.h"
#include "src/run/measure/bench_comm.h"
#include "src/run/measure/machine.h"
#include "src/run/measure/measure.h"
#include "src/run/measure/profile_subject.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// One repeat of a short step differs from the next by 15 to 25 % where ranks share cores, as much
// as from that of another round: so many are needed.
constexpr int kMostRepeats = 8;
constexpr double kLeastProbeSeconds = 0.1;
// However long one takes: the first run of a program finds cold caches and memory that was not yet
// touched, so it does not count, and of two that do one may have been disturbed.
constexpr int kColdProbes = 1;
constexpr int kLeastRepeats = 2;

// Of a play on all ranks: of a micro-batch.
struct Repeat {
  PartTimes::Seconds parts;      // mean over the ranks
  PartTimes::Seconds processor;  // of a core
  double micro_batch = 0;        // of the slowest rank
  std::int64_t saved_bytes = 0;
  std::int64_t peak_bytes = 0;
};

class Profiler {
 public:
  explicit Profiler(const ProfileRequest& request)
      : request_(request), subject_(profile_subject(request)), cores_(subject_.header.cores) {
    expect_room();
    probe_seconds_ = std::min(
        request.probe_seconds,
        std::max(
            kLeastProbeSeconds,
            kProfileRounds * request.seconds / (2 * static_cast<double>(subject_.steps.size()))));
    if (request.backend->leads()) {
      writer_.emplace(request.file, subject_.header, known_);
      // there may be time or memory now for what there was none then
      std::erase_if(known_.steps, [&](const StepProbe& step) {
        if (step.outcome == Outcome::memory) {
          told_.insert(step_key(step));
        }
        return step.outcome != Outcome::measured;
      });
      for (const StepProbe& step : known_.steps) {
        expect_same_dims(step);
        ++rounds_[step_key(step)];
      }
    }
  }

  Profile run() {
    begin_ = Clock::now();
    for (int g = 2; g < request_.ranks; g *= 2) {
      collectives(g);
    }
    collectives(request_.ranks);
    if (request_.backend->leads()) {
      kernels();
    }
    request_.backend->run(
        request_.ranks, [&](Communicators& communicators) { run_rank(communicators); });
    return known_;
  }

 private:
  // Of what a rank holds of an element.
  [[nodiscard]] Precision precision() const {
    Precision precision = precision_of(request_.dtype);
    precision.optimizer_on_host = request_.optimizer_on_host;
    return precision;
  }

  // As many rows may be other dims, of which parts do other work.
  void expect_same_dims(const StepProbe& known) const {
    for (const ProfileStep& step : subject_.steps) {
      if (subject_.model.of_samples() && step.probe.length == known.length &&
          step.probe.mlp != known.mlp) {
        throw std::invalid_argument(fmt::format(
            "profile: {} has steps of {} rows, {}, and those of this data are {}; name another "
            "file "
            "with --out",
            request_.file.string(),
            known.length,
            known.mlp,
            step.probe.mlp));
      }
    }
  }

  // Of a model whose weights alone leave no room, cut as it is, no step can be measured.
  void expect_room() const {
    const std::int64_t bytes =
        most_static_bytes(subject_.model, request_.ranks, precision(), Keeps::optimizer);
    if (request_.memory_per_rank > 0 && bytes >= request_.memory_per_rank) {
      throw std::invalid_argument(fmt::format(
          "profile: parallel.memory_per_rank is {}, and parameters, gradients and optimizer alone "
          "take {} of a rank: give more memory, more ranks or a smaller model",
          bytes_text(request_.memory_per_rank),
          bytes_text(bytes)));
    }
  }

  void add(const StepProbe& probe) {
    writer_->add(probe);
    known_.steps.push_back(probe);
    ++rounds_[step_key(probe)];
  }
  void add(const PartProbe& probe) {
    writer_->add(probe);
    known_.parts.push_back(probe);
  }
  // The rounds of what cannot be measured are over.  That is written down once, unless some were.
  void give_up(const ProfileStep& wish, Outcome why) {
    int& rounds = rounds_[step_key(wish.probe)];
    StepProbe probe = wish.probe;
    probe.outcome = why;
    if (rounds == 0) {
      known_.steps.push_back(probe);
      if (why != Outcome::memory || told_.insert(step_key(probe)).second) {
        writer_->add(probe);
      }
    }
    rounds = kProfileRounds;
  }

  // Bytes that the fold counts on the fullest rank: at the peak, and saved.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> counted(const Plan& plan) const {
    const Precision precision = this->precision();
    std::pair<std::int64_t, std::int64_t> most;
    for (int r = 0; r < request_.ranks; ++r) {
      const RankPart part = rank_part(plan, plan.micro_batches.front(), subject_.model, r, true);
      const Footprint foot = footprint(
          part.timeline,
          part.seat,
          precision,
          static_bytes(
              subject_.model, request_.ranks, r, precision, Keeps::optimizer, plan.messages));
      most.first = std::max(most.first, foot.peak_bytes);
      most.second = std::max(most.second, foot.saved_bytes);
    }
    return most;
  }

  // Of a micro-batch like the wish's, from what is known of shorter ones in groups of the size,
  // else in groups of any; 0: nothing is known.
  [[nodiscard]] double guess_micro_batch(const StepProbe& wish) const {
    const auto from_steps = [&](const auto& alike) {
      double best = 0;
      std::int64_t from = 0;
      for (const StepProbe& step : known_.steps) {
        if (step.outcome != Outcome::measured || step.length > wish.length || step.length < from ||
            step.reshard_after_backward != wish.reshard_after_backward || !alike(step)) {
          continue;
        }
        const double ratio = static_cast<double>(wish.length) / static_cast<double>(step.length);
        const double documents = std::max(1.0, static_cast<double>(step.ranks) / wish.ranks);
        const double seconds = documents * step.seconds.most * std::pow(ratio, 1.8);
        best = step.length > from ? seconds : std::max(best, seconds);
        from = step.length;
      }
      return best;
    };
    const double same = from_steps([&](const StepProbe& s) { return s.ranks == wish.ranks; });
    return same > 0 ? same : from_steps([](const StepProbe& /*s*/) { return true; });
  }

  // Of one that gathers weights: what it takes without, and the gathers, which are those of the
  // shortest; infinite where either is not known.
  [[nodiscard]] double guess_with_gathers(const StepProbe& wish) const {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    double without = kNever;
    double gathers = kNever;
    for (const StepProbe& step : known_.steps) {
      if (step.outcome != Outcome::measured || step.ranks != wish.ranks) {
        continue;
      }
      if (step.reshard_after_backward) {
        gathers = std::min(gathers, step.seconds.most);
      } else if (
          step.attention == wish.attention && step.recompute == wish.recompute &&
          step.length == wish.length) {
        without = step.seconds.most;
      }
    }
    return without + gathers;
  }

  // At least.
  [[nodiscard]] static int plays_of(const StepProbe& probe) {
    return probe.reshard_after_backward ? kColdProbes + kLeastRepeats : 1;
  }

  // Seconds that measuring it may take; 0: nothing is known.
  [[nodiscard]] double guess(const StepProbe& wish) const {
    const double one = guess_micro_batch(wish);
    if (!wish.reshard_after_backward) {
      return exchange_seconds_ + micro_batches_of_whole(wish.length) * one;
    }
    return plays_of(wish) * std::min(one, guess_with_gathers(wish));
  }

  // Rank 0: the next wish to measure, those that cannot be marked; -1: there is none.
  std::int64_t next() {
    const std::vector<ProfileStep>& steps = subject_.steps;
    for (std::size_t w = 0; w < steps.size(); ++w) {
      if (rounds_[step_key(steps[w].probe)] > steps[w].round) {
        continue;
      }
      if (request_.stop != nullptr && request_.stop->load()) {
        return -1;
      }
      if (can_run(steps[w])) {
        show(steps[w]);
        return static_cast<std::int64_t>(w);
      }
    }
    return -1;
  }

  // Whether memory and time suffice; where they do not for the first of its rounds, that is kept.
  bool can_run(const ProfileStep& wish) {
    if (request_.memory_per_rank > 0 && counted(wish.plan).first > request_.memory_per_rank) {
      give_up(wish, Outcome::memory);
      return false;
    }
    if (seconds_since(begin_) + guess(wish.probe) > request_.seconds) {
      give_up(wish, Outcome::time);
      return false;
    }
    return true;
  }

  void show(const ProfileStep& wish) {
    if (request_.progress) {
      std::int64_t done = 0;
      for (const ProfileStep& step : subject_.steps) {
        done += rounds_[step_key(step.probe)] > step.round ? 1 : 0;
      }
      request_.progress(
          {.probes = done,
           .of = static_cast<std::int64_t>(subject_.steps.size()),
           .seconds = seconds_since(begin_),
           .seconds_of = request_.seconds,
           .what = wish.what});
    }
  }

  [[nodiscard]] SessionOptions session_options(PartTimes* times = nullptr) const {
    return {
        .dtype = request_.dtype,
        .masters = request_.optimizer_on_host ? Masters::on_host : Masters::on_device,
        .memory_bytes = request_.memory_per_rank,
        .device = request_.device,
        .part_times = times};
  }

  void run_rank(Communicators& communicators) {
    const int me = communicators.rank();
    optimizer(communicators);
    PartTimes times;
    SessionOptions options = session_options(&times);
    if (!request_.device.is_cpu()) {  // as the run that goes by this profile
      options.attention_dense_from = broadcast_number(
          me == 0 ? attention_dense_from(known_).value_or(kAttentionDenseFrom) : 0,
          "profile",
          communicators.world());
    }
    RankSession session(communicators, subject_.model, options);
    session.parameters().initialize(1);
    const AdamW moments(
        session.parameters(),
        {.offload = request_.optimizer_on_host});  // are there while a step runs
    for (;;) {
      const std::int64_t w =
          broadcast_number(me == 0 ? next() : 0, "profile", communicators.world());
      if (w < 0) {
        break;
      }
      const ProfileStep& wish = subject_.steps[idx(w)];
      std::vector<Repeat> samples;
      const auto lack =
          within_memory(communicators, [&] { samples = measure(wish, session, times); });
      if (me != 0) {
        continue;
      }
      if (lack) {  // it needs more than was counted
        give_up(wish, Outcome::memory);
      } else {
        keep(wish, samples);
      }
    }
  }

  // The same repeats on all ranks; rank 0 has the samples.
  std::vector<Repeat> measure(const ProfileStep& wish, RankSession& session, PartTimes& times) {
    Communicator& world = session.world();
    const Plan& plan = wish.plan;
    const std::vector<OwnedItem> data = [&] {
      const HostScope host;  // no memory of a rank
      return synthetic_items(subject_.model, sizes_of(plan));
    }();
    const std::vector<Item> items = items_of(data);
    std::vector<Repeat> samples;
    const auto begin = Clock::now();
    for (bool more = true; more;) {
      session.parameters().zero_gradients();
      session.memory().reset_peak();
      static_cast<void>(times.take());  // of a play that lacked memory
      world.barrier({.op = "profile: a repeat", .part = ""});
      const auto start = Clock::now();
      const BatchResult result = session.play(plan, {.items = items}, /*backward=*/true);
      synchronize(request_.device);
      const double seconds = seconds_since(start);
      samples.push_back(repeat_of(times.take(), result, session));
      if (!wish.probe.reshard_after_backward) {
        exchange_seconds_ = std::max(
            exchange_seconds_,
            seconds -
                std::accumulate(
                    result.micro_batch_seconds.begin(), result.micro_batch_seconds.end(), 0.0));
      }
      const auto plays = static_cast<int>(samples.size());
      const auto repeats = plays * static_cast<int>(plan.micro_batches.size());
      more = broadcast_number(
                 plays < plays_of(wish.probe) ||
                     (repeats <= kMostRepeats && seconds_since(begin) < probe_seconds_),
                 "profile",
                 world) != 0;
    }
    if (wish.probe.reshard_after_backward) {
      samples.erase(samples.begin(), samples.begin() + kColdProbes);
    }
    return samples;
  }

  // Of what this rank played: the mean of its micro-batches, of several without the first, which is
  // cold.  Ranks that share a core take turns of milliseconds, so one short micro-batch says
  // little, and plans add them up.  Rank 0 has it of all ranks.
  [[nodiscard]] Repeat repeat_of(
      const std::vector<PartTimes::OfMicroBatch>& played,
      const BatchResult& result,
      RankSession& session) const {
    const std::size_t first = played.size() > 1 ? 1 : 0;
    const std::size_t parts = played.front().wall.size();
    const std::size_t numbers = kPartPhases * parts;
    std::vector<double> seconds(1 + 2 * numbers);  // of the micro-batch, parts, and of processors
    const double share = 1.0 / static_cast<double>(played.size() - first);
    for (std::size_t m = first; m < played.size(); ++m) {
      seconds[0] += share * result.micro_batch_seconds[m];
      for (std::size_t i = 0; i < numbers; ++i) {
        seconds[1 + i] += share * played[m].wall[i / kPartPhases][i % kPartPhases];
        seconds[1 + numbers + i] += share * played[m].processor[i / kPartPhases][i % kPartPhases];
      }
    }
    std::vector<std::int64_t> mine = {result.saved_bytes, session.memory().peak_bytes()};
    std::ranges::transform(seconds, std::back_inserter(mine), [](double of) {
      return static_cast<std::int64_t>(std::llround(of * 1e9));
    });
    Repeat repeat{.parts = PartTimes::Seconds(parts), .processor = PartTimes::Seconds(parts)};
    for (const std::vector<std::int64_t>& of_rank : gather(mine, session.world())) {
      const auto of = [&](std::size_t i) { return static_cast<double>(of_rank[2 + i]) * 1e-9; };
      repeat.saved_bytes = std::max(repeat.saved_bytes, of_rank[0]);
      repeat.peak_bytes = std::max(repeat.peak_bytes, of_rank[1]);
      repeat.micro_batch = std::max(repeat.micro_batch, of(0));
      for (std::size_t i = 0; i < numbers; ++i) {
        repeat.parts[i / kPartPhases][i % kPartPhases] += of(1 + i) / request_.ranks;
        repeat.processor[i / kPartPhases][i % kPartPhases] += of(1 + numbers + i) / cores_;
      }
    }
    return repeat;
  }

  // Several layouts of a video or protein model run the same part by the same strategy, from
  // elsewhere: in each round that is kept which runs first.
  [[nodiscard]] bool keeps(const PartProbe& part, const ProfileStep& wish) const {
    const auto same = std::ranges::count_if(known_.parts, [&](const PartProbe& known) {
      return known.part == part.part && known.strategy == part.strategy &&
             known.recompute == part.recompute && known.ranks == wish.probe.ranks &&
             known.length == wish.probe.length &&
             known.reshard_after_backward == wish.probe.reshard_after_backward;
    });
    return !subject_.model.of_samples() || same <= wish.round;
  }

  void keep(const ProfileStep& wish, const std::vector<Repeat>& samples) {
    const Plan& plan = wish.plan;
    const Precision precision = precision_of(request_.dtype);
    std::vector<RankPart> ranks;
    for (int r = 0; r < request_.ranks; ++r) {
      ranks.push_back(rank_part(plan, plan.micro_batches.front(), subject_.model, r, true));
      const int first = r / wish.probe.ranks * wish.probe.ranks;  // groups lie side by side
      ranks.back().seat.across_nodes =
          across_nodes(first, first + wish.probe.ranks - 1, subject_.header.ranks_per_node);
    }
    const Timeline& parts = ranks.front().timeline;
    // Parts of one name: of layers, the mean over them; of the rest, the sum.
    const auto probe = [&](PartProbe one, const std::vector<std::size_t>& which, double share) {
      one.ranks = wish.probe.ranks;
      one.length = wish.probe.length;
      one.reshard_after_backward = wish.probe.reshard_after_backward;
      std::vector<PartWork> works(ranks.size());
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        for (const std::size_t i : which) {
          works[r] += part_work(ranks[r].timeline[i], ranks[r].seat, precision);
        }
        works[r] *= share;
      }
      one.work = together(works, cores_);
      const auto of_samples = [&](std::size_t phase, PartTimes::Seconds Repeat::* seconds) {
        std::vector<double> values;
        for (const Repeat& sample : samples) {
          double sum = 0;
          for (const std::size_t i : which) {
            sum += (sample.*seconds)[i][phase];
          }
          values.push_back(sum * share);
        }
        return spread_of(values);
      };
      for (std::size_t phase = 0; phase < kPartPhases; ++phase) {
        one.seconds[phase] = of_samples(phase, &Repeat::parts);
      }
      if (request_.ranks > cores_ && request_.device.is_cpu()) {
        auto& processor = one.processor_seconds.emplace();
        for (std::size_t phase = 0; phase < kPartPhases; ++phase) {
          processor[phase] = of_samples(phase, &Repeat::processor).median;
        }
      }
      add(one);
    };
    const std::vector<LayerChoice> layers = choices(plan.programs.begin()->second);
    std::vector<std::pair<PartProbe, std::vector<std::size_t>>> of_layers;  // by name and strategy
    std::vector<std::size_t> rest;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string name = costed_name(parts[i]);
      if (name == "rest") {
        rest.push_back(i);
        continue;
      }
      PartProbe one{.part = name, .recompute = wish.probe.recompute};
      if (name != "move") {
        const PartChoice choice = canonical(part_of(layers[idx(parts[i].layer)], name));
        one.strategy = choice.strategy;
        one.recompute = to_string(choice.recompute);
      }
      const auto same = std::ranges::find_if(of_layers, [&](const auto& known) {
        return known.first.part == one.part && known.first.strategy == one.strategy;
      });
      if (same == of_layers.end()) {
        of_layers.push_back({one, {i}});
      } else {
        same->second.push_back(i);
      }
    }
    for (const auto& [one, which] : of_layers) {
      if (keeps(one, wish)) {
        probe(one, which, 1.0 / static_cast<double>(which.size()));
      }
    }
    if (const PartProbe one{.part = "rest"}; keeps(one, wish)) {
      probe(one, rest, 1);
    }

    StepProbe step = wish.probe;
    std::vector<double> seconds;
    for (const Repeat& sample : samples) {
      seconds.push_back(sample.micro_batch);
      step.saved_bytes = std::max(step.saved_bytes, sample.saved_bytes);
      step.peak_bytes = std::max(step.peak_bytes, sample.peak_bytes);
    }
    step.seconds = spread_of(seconds);
    std::tie(step.counted_peak_bytes, step.counted_saved_bytes) = counted(plan);
    add(step);
  }

  // Of a group of so many ranks.
  void collectives(int ranks) {
    // Every process takes part, so rank 0's word decides.
    bool there = false;
    const bool mine = std::any_of(
        known_.collectives.begin(), known_.collectives.end(), [&](const CollectiveProbe& probe) {
          return probe.ranks == ranks;
        });
    request_.backend->run(request_.ranks, [&](Communicators& communicators) {
      const bool known =
          broadcast_number(communicators.rank() == 0 && mine, "profile", communicators.world()) !=
          0;
      if (communicators.rank() == request_.backend->first_rank()) {
        there = known;
      }
    });
    if (there || ranks == 1) {
      return;
    }
    const std::vector<BenchCommRow> rows = bench_comm(
        {.ranks = request_.ranks,
         .group = ranks,
         .bytes = {4096, 65536, 1048576},
         // ranks outside of the group wait for it, each collective's seconds twenty times
         .seconds = std::min(request_.seconds / 2000, 0.2),
         .backend = request_.backend,
         .device = request_.device});
    for (const BenchCommRow& row : rows) {
      const CollectiveProbe probe{
          .collective = row.collective,
          .ranks = ranks,
          .bytes = row.bytes,
          .seconds = {.median = row.seconds, .least = row.least_seconds, .most = row.most_seconds}};
      writer_->add(probe);
      known_.collectives.push_back(probe);
    }
  }

  // Products and attention of the model's shapes, on one core; on a GPU attention's two kernels.
  void kernels() {
    const auto keep = [&](const std::vector<KernelProbe>& probes) {
      for (const KernelProbe& probe : probes) {
        writer_->add(probe);
        known_.kernels.push_back(probe);
      }
    };
    if (known_.kernels.empty()) {
      keep(measure_kernels(request_.model, request_.dtype, request_.device));
    }
    const PartShape shape = request_.model.typical_part();
    if (!request_.device.is_cpu() && !subject_.model.of_samples() &&
        !attention_dense_from(known_)) {
      keep(measure_attention_kernels(
          {.heads = shape.heads,
           .key_heads = shape.kv_heads,
           .head_dim = shape.head_dim,
           .scale = 1 / std::sqrt(static_cast<double>(shape.head_dim))},
          parameter_types(request_.dtype).weight,
          request_.device,
          std::vector<std::int64_t>{1024, 2048, 4096, 8192, 16384, 32768}));
    }
  }

  // Norm of the gradients and update of models of several sizes.
  void optimizer(Communicators& communicators) {
    Communicator& world = communicators.world();
    const int me = communicators.rank();
    if (broadcast_number(
            me == 0 && std::any_of(
                           known_.parts.begin(),
                           known_.parts.end(),
                           [](const PartProbe& probe) { return probe.part == "optimizer"; }),
            "profile",
            world) != 0) {
      return;
    }
    for (const std::int64_t layers : std::set<std::int64_t>(
             subject_.optimizer_layers.begin(), subject_.optimizer_layers.end())) {
      const Model model = with_layers(request_.model, layers);
      const std::int64_t most =
          most_static_bytes(model, request_.ranks, precision(), Keeps::optimizer);
      if (request_.memory_per_rank > 0 && most > request_.memory_per_rank) {
        continue;
      }
      RankSession session(communicators, model, session_options());
      Parameters& parameters = session.parameters();
      parameters.initialize(1);
      AdamW adam(parameters, {.offload = request_.optimizer_on_host});
      std::vector<double> times;
      for (int i = 0; i < 6; ++i) {
        world.barrier({.op = "profile", .part = ""});
        const auto begin = Clock::now();
        parameters.zero_gradients();
        gradient_norm(parameters, world);
        adam.step(1e-4, 1.0);
        synchronize(request_.device);
        world.barrier({.op = "profile", .part = ""});
        if (i > 0) {
          times.push_back(seconds_since(begin));
        }
      }
      if (me != 0) {
        continue;
      }
      PartProbe probe{.part = "optimizer", .ranks = request_.ranks, .length = layers};
      probe.seconds[0] = spread_of(times);
      probe.work.phases[0].values[Amounts::touched_bytes] = static_cast<double>(most);
      add(probe);
    }
  }

  const ProfileRequest& request_;
  ProfileSubject subject_;
  int cores_ = 1;
  double probe_seconds_ = 0;
  double exchange_seconds_ = 0;  // of a step with weights whole, the most so far
  Clock::time_point begin_;
  // Of the process that leads.
  Profile known_;
  std::optional<ProfileWriter> writer_;
  std::map<StepKey, int> rounds_;  // that are over
  std::set<StepKey> told_;         // of which the file says that memory was lacking
};

}  // namespace

StepKey step_key(const StepProbe& step) {
  return {step.attention, step.recompute, step.ranks, step.length, step.reshard_after_backward};
}

std::vector<std::int64_t> profile_lengths(std::int64_t longest) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 64; n < longest; n *= 2) {
    lengths.push_back(n);
  }
  lengths.push_back(longest);
  return lengths;
}

Profile profile(const ProfileRequest& request) {
  install_accounting_allocator(request.device);
  return Profiler(request).run();
}

}  // namespace paradyse
