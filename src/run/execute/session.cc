#include "paradyse/run/session.h"

#include <charconv>

#include <fmt/format.h>

#include "src/plan/base/sha256.h"
#include "src/run/execute/gather.h"
#include "src/run/execute/session_state.h"
#include "src/run/execute/trace.h"

namespace paradyse {
namespace {

int weight_domain(int wanted, int ranks) {
  if (wanted < 0 || (wanted > 0 && ranks % wanted != 0)) {
    throw std::invalid_argument(fmt::format(
        "a sharding group (weight_domain) of {} ranks does not divide {} ranks; 0 takes all of "
        "them",
        wanted,
        ranks));
  }
  return wanted == 0 ? ranks : wanted;
}

// From `first` on, every `stride`-th of `count`.
std::vector<int> ranks_from(int first, int stride, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) {
    ranks.push_back(first + i * stride);
  }
  return ranks;
}

// Whoever makes a session has a budget, so allocations are counted from here on.
c10::Device counted(c10::Device device) {
  install_accounting_allocator(device);
  return device;
}

}  // namespace

RankSession::State::State(Communicators& of_rank, const Model& model, const SessionOptions& given)
    : communicators(of_rank),
      options([&] {
        SessionOptions all = given;
        all.weight_domain = weight_domain(given.weight_domain, of_rank.size());
        return all;
      }()),
      domain_ranks(ranks_from(
          of_rank.rank() / options.weight_domain * options.weight_domain,
          1,
          options.weight_domain)),
      replica_ranks(ranks_from(
          of_rank.rank() % options.weight_domain,
          options.weight_domain,
          of_rank.size() / options.weight_domain)),
      computing(counted(options.device)),
      memory("rank " + std::to_string(of_rank.rank()), options.memory_bytes, options.device),
      scope(memory, Category::parameters, "parameters"),
      parameters(
          model,
          options.weight_domain,
          of_rank.rank() % options.weight_domain,
          parameter_types(options.dtype),
          options.gradients,
          options.masters,
          options.device),
      kernels(kernels_for(options.device)) {}

const std::string& RankSession::State::hash_of(const Plan& plan) {
  if (!known || known->first != plan) {
    remember(plan, hash(plan));
  }
  return known->second;
}

void RankSession::State::remember(Plan plan, std::string sha256) {
  known.emplace(std::move(plan), std::move(sha256));
}

void RankSession::State::note(
    const char* what, const char* category, std::chrono::steady_clock::time_point begin) const {
  if (options.trace != nullptr) {
    options.trace->add(communicators.rank(), what, category, begin, Trace::Clock::now());
  }
}

RankSession::RankSession(
    Communicators& communicators, const Model& model, const SessionOptions& options)
    : state_(std::make_unique<State>(communicators, model, options)) {}

RankSession::~RankSession() = default;

int RankSession::rank() const { return state_->communicators.rank(); }
Communicators& RankSession::communicators() { return state_->communicators; }
Communicator& RankSession::world() { return communicators().world(); }
Communicator& RankSession::domain() { return communicators().group(state_->domain_ranks); }
Communicator& RankSession::replicas() { return communicators().group(state_->replica_ranks); }
Parameters& RankSession::parameters() { return state_->parameters; }
Accountant& RankSession::memory() { return state_->memory; }

std::optional<Plan> RankSession::broadcast(std::optional<Plan> mine) {
  if (world().size() == 1) {
    return mine;
  }
  const bool first = rank() == 0;
  // its predicted seconds, which are no part of its hash, on the first line
  const std::string text = broadcast_text(
      first && mine
          ? fmt::format("{}\n{}", mine->predicted.seconds.value_or(0), canonical_json(*mine))
          : "",
      "plan",
      world());
  if (text.empty()) {
    return std::nullopt;
  }
  const std::size_t line = text.find('\n');
  const std::string rest = text.substr(line + 1);
  Plan plan = first ? *std::move(mine) : plan_from_json(rest, "rank 0's plan");
  if (!first) {
    double& seconds = plan.predicted.seconds.emplace();
    std::from_chars(text.data(), text.data() + line, seconds);
  }
  state_->remember(plan, sha256_hex(rest));
  return plan;
}

void RankSession::note(
    const char* what, const char* category, std::chrono::steady_clock::time_point begin) {
  state_->note(what, category, begin);
}

}  // namespace paradyse
