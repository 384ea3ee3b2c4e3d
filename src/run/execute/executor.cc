// The machine whose values are tensors.
//
// Invariant, held by the walk: a frame holds a value from the op that makes it, or the handing on
// of a stream, to its last reader of this pass, or, where the schedule saves it, of the backward
// pass; a gradient from the adjoint that makes it, or the handing back, to the adjoint of the op
// that made the value.  So what is alive is what the footprint fold counts, and at the end nothing
// is.
#include "src/run/execute/executor.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
#include "src/run/execute/breakdown.h"
#include "src/run/execute/part_times.h"
#include "src/run/execute/trace.h"
#include "src/run/memory/device_blocks.h"
#include "src/run/memory/host_store.h"
#include "src/run/ops/ops.h"

namespace paradyse {
namespace {

class Executor final : public Machine {
 public:
  Executor(
      const Timeline& timeline,
      const MicroBatch& batch,
      const RankContext& rank,
      UsedWeights weights,
      double loss_scale)
      : timeline_(timeline),
        rank_(rank),
        // ids and their rows twice, labels, positions and tokens of the rank and of all
        numbers_(
            weights.device,
            static_cast<std::int64_t>(7 * batch.ids.size() + 2 * batch.all_positions.size())),
        frames_(timeline.size()),
        labels_(timeline.size()) {
    const ParameterTypes types = weights.types;
    {
      const MemoryScope scope(*rank.memory, Category::transient, "rotary tables");
      turning_ = turning_programs(timeline);
      ropes_.reserve(turning_.size());
      for (const Program* turning : turning_) {
        ropes_.push_back(rope_table(
            *turning->shape.rope,
            turning->shape.head_dim,
            rope_positions(*turning),
            types.gradient,
            *rank.kernels,
            weights.device));
      }
    }
    for (std::size_t i = 0; i < timeline.size(); ++i) {
      const std::size_t values = timeline[i].program().values.size();
      frames_[i] = Frame{
          .part = &timeline[i],
          .rank = &rank_,
          .batch = &batch,
          .numbers = &numbers_,
          .rope = rope_of(timeline[i].program()),
          .parameters = parameters_of(weights, timeline[i]),
          .result = &result_,
          .loss_scale = loss_scale,
          .activation = types.weight,
          .statistic = types.gradient,
          .device = weights.device,
          .values = std::vector<at::Tensor>(values),
          .gradients = std::vector<at::Tensor>(values),
          .pending = {}};
      frames_[i].pending.resize(values);
      for (const Op& op : timeline[i].program().ops) {
        labels_[i].push_back(to_string(Call{
            .op = to_string(op.kind),
            .part = timeline[i].program().part,
            .layer = timeline[i].layer}));
      }
    }
  }

  void prefetch(std::size_t part, int op) override {
    const MemoryScope scope(*rank_.memory, Category::transient, label(part, op));
    naming_lack(
        [&] { implementation(op_of(part, op).kind).issue(frames_[part], op_of(part, op)); });
  }

  void forward(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    const MemoryScope scope(*rank_.memory, Category::transient, label(part, i));
    const TimedPart scope_time(rank_.breakdown, Breakdown::part_of(op.kind));
    const TimedMark begin = traced();
    naming_lack([&] { implementation(op.kind).forward(frames_[part], op); });
    for (const ValueId out : op.out) {
      mark_saved(part, out);
    }
    record(part, i, forward_pass_ ? "forward" : "recompute", begin);
    timed(part, forward_pass_ ? PartPhase::forward : PartPhase::recompute);
  }

  void begin_adjoint(std::size_t part, int i) override {
    begun_.insert({part, i});
    go_back(part, i, implementation(op_of(part, i).kind).begin_adjoint);
  }
  void adjoint(std::size_t part, int i) override {
    const OpImplementation& of_kind = implementation(op_of(part, i).kind);
    go_back(part, i, begun_.erase({part, i}) != 0 ? of_kind.end_adjoint : of_kind.adjoint);
  }

  void drop_value(std::size_t part, ValueId value) override {
    frames_[part].values[idx(value)] = at::Tensor();
  }
  void offload(std::size_t part, ValueId value) override {
    at::Tensor& tensor = frames_[part].values[idx(value)];
    tensor = to_host(tensor);
    timed(part, forward_pass_ ? PartPhase::forward : PartPhase::backward);
  }
  void fetch(std::size_t part, ValueId value) override {
    at::Tensor& tensor = frames_[part].values[idx(value)];
    const MemoryScope scope(*rank_.memory, Category::saved, "offloaded tensors");
    const at::Tensor here = at::empty(
        tensor.sizes(), tensor.options().device(frames_[part].device).pinned_memory(false));
    here.copy_(tensor);
    tensor = here;
    timed(part, PartPhase::backward);
  }
  void drop_gradients(std::size_t part, int i) override {
    for (const ValueId out : op_of(part, i).out) {
      frames_[part].gradients[idx(out)] = at::Tensor();
    }
  }
  void hand_forward(std::size_t part, std::size_t end) override {
    const ScheduledPart& maker = timeline_[part];
    for (std::size_t i = 0; i < maker.readers.size(); ++i) {
      const ValueId out = maker.program().writes[i].value;
      const at::Tensor& tensor = frames_[part].values[idx(out)];
      for (const Place& reader : maker.readers[i]) {
        if (reader.part < end) {
          frames_[reader.part].values[idx(reader.value)] = tensor;
          mark_saved(reader.part, reader.value);
        }
      }
    }
  }
  void hand_backward(std::size_t part) override {
    const ScheduledPart& reader = timeline_[part];
    for (std::size_t i = 0; i < reader.gradient_to.size(); ++i) {
      const Place to = reader.gradient_to[i];
      const auto in = idx(reader.program().reads[i].value);
      at::Tensor gradient = std::exchange(frames_[part].gradients[in], at::Tensor());
      if (to.part != kNobody) {
        frames_[to.part].gradients[idx(to.value)] = std::move(gradient);
      }
    }
  }

  MicroBatchResult run(bool backward) {
    if (rank_.part_times != nullptr) {
      rank_.part_times->restart(timeline_.size());
    }
    walk_forward(timeline_, *this);
    result_.saved_bytes = rank_.memory->live_bytes(Category::saved);
    forward_pass_ = false;
    if (backward) {
      walk_backward(timeline_, *this);
    }
    return std::move(result_);
  }

 private:
  static PartParameters* parameters_of(UsedWeights weights, const ScheduledPart& part) {
    return part.weights < 0 ? nullptr : &weights.parts.at(idx(part.weights));
  }
  // The table of how a program turns queries; null: it does not.
  [[nodiscard]] const RopeTable* rope_of(const Program& program) const {
    const auto found = std::ranges::find_if(
        turning_, [&](const Program* other) { return turn_alike(*other, program); });
    return found == turning_.end() ? nullptr : &ropes_[idx(found - turning_.begin())];
  }
  const Op& op_of(std::size_t part, int op) const { return timeline_[part].program().ops[idx(op)]; }
  const char* label(std::size_t part, int op) const { return labels_[part][idx(op)].c_str(); }
  // What is made again in the backward pass is saved where its whole layer is.
  void mark_saved(std::size_t part, ValueId value) {
    const ScheduledPart& of = timeline_[part];
    if (std::ranges::binary_search(forward_pass_ ? of.waiting : of.schedule().saved, value)) {
      Accountant::recategorize(frames_[part].values[idx(value)], Category::saved);
    }
  }
  void go_back(std::size_t part, int i, void (*step)(Frame&, const Op&)) {
    const Op& op = op_of(part, i);
    const MemoryScope scope(*rank_.memory, Category::transient, label(part, i));
    const TimedPart scope_time(rank_.breakdown, Breakdown::part_of(op.kind));
    const TimedMark begin = traced();
    naming_lack([&] { step(frames_[part], op); });
    record(part, i, "backward", begin);
    timed(part, PartPhase::backward);
  }
  void timed(std::size_t part, PartPhase phase) const {
    if (rank_.part_times != nullptr) {
      rank_.part_times->ran(part, phase);
    }
  }
  // Here, where there is a trace.
  [[nodiscard]] TimedMark traced() const {
    return rank_.trace == nullptr ? TimedMark() : TimedMark::here();
  }
  void record(std::size_t part, int op, const char* category, const TimedMark& begin) const {
    if (rank_.trace == nullptr) {
      return;
    }
    if (part != sampled_) {  // once for each part that it comes to
      sampled_ = part;
      rank_.trace->add_memory(rank_.world_rank, rank_.memory->live_bytes());
    }
    rank_.trace->add(
        rank_.world_rank,
        label(part, op),
        traits(op_of(part, op).kind).only_moves ? "communication" : category,
        begin,
        TimedMark::here());
  }

  const Timeline& timeline_;
  RankContext rank_;
  mutable std::size_t sampled_ = std::numeric_limits<std::size_t>::max();  // part, for the trace
  std::vector<const Program*> turning_;  // one for each way in which queries turn
  std::vector<RopeTable> ropes_;         // [turning]
  BatchNumbers numbers_;
  std::vector<Frame> frames_;
  std::vector<std::vector<std::string>> labels_;
  MicroBatchResult result_;
  std::set<std::pair<std::size_t, int>> begun_;  // adjoints whose rest is still to come
  bool forward_pass_ = true;
};

}  // namespace

MicroBatchResult run_micro_batch(
    const Timeline& timeline,
    const MicroBatch& batch,
    const RankContext& rank,
    UsedWeights weights,
    double loss_scale,
    bool backward) {
  const c10::InferenceMode no_autograd;
  return Executor(timeline, batch, rank, weights, loss_scale).run(backward);
}

void finish_gradients(Parameters& parameters, Communicator& world, Communicator& replicas) {
  const c10::InferenceMode no_autograd;
  std::vector<at::Tensor> all;
  for (PartParameters& part : parameters.parts()) {
    std::ranges::copy_if(part.vector_grads, std::back_inserter(all), &at::Tensor::defined);
    const auto& matrices = part.weights.matrices;
    if (replicas.size() > 1 && part.stack_grad.defined() && !matrices.front().tied) {
      replicas.all_reduce(
          part.stack_grad,
          {.op = "replica gradients", .part = part.weights.part, .layer = part.layer});
    }
  }
  if (all.empty() || world.size() == 1) {
    return;
  }
  const MemoryScope scope(Category::communication, "vector gradients");
  const at::Tensor together = at::cat(all);
  world.all_reduce(together, {.op = "vector gradients", .part = ""});
  std::int64_t at = 0;
  for (const at::Tensor& grad : all) {
    grad.copy_(together.narrow(0, at, grad.numel()));
    at += grad.numel();
  }
}

}  // namespace paradyse
