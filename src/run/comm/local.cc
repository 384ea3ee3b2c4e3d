// The `local` backend: ranks are threads of one process and read each other's memory.
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "src/run/comm/boxes.h"
#include "src/run/comm/meeting.h"

namespace paradyse::local {
namespace {

using Clock = std::chrono::steady_clock;

// What a throw drops may still be read and written on the device: it is waited for.
class FinishOnThrow {
 public:
  FinishOnThrow() = default;
  ~FinishOnThrow() {
    if (std::uncaught_exceptions() > before_) {
      finish_streams();
    }
  }
  FinishOnThrow(const FinishOnThrow&) = delete;
  FinishOnThrow& operator=(const FinishOnThrow&) = delete;

 private:
  int before_ = std::uncaught_exceptions();
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }

  std::unique_ptr<Pending> exchange(
      const at::Tensor& from,
      const at::Tensor& to,
      const Transfer& table,
      const Call& call) override {
    check_piece(from, table.source[idx(rank_)], call, "source");
    check_piece(to, table.destination[idx(rank_)], call, "destination");
    if (from.scalar_type() != to.scalar_type()) {
      throw std::logic_error(to_string(call) + ": source and destination have different types");
    }
    return issue(
        CollectiveKind::exchange, from, call, [this, to, &table](const Meeting::Slot& slot) {
          std::vector<std::int64_t> got(idx(size()));
          for (const Box& box : table.boxes) {
            if (box.destination != rank_) {
              continue;
            }
            copy_region(
                to, at_destination(box), shown(slot, box.source, table.source, to), at_source(box));
            got[idx(box.source)] += box.elements() * bytes_of(to);
          }
          count(got);
        });
  }

  std::unique_ptr<Pending> exchange_sum(
      const at::Tensor& from,
      const at::Tensor& to,
      const Transfer& table,
      bool accumulate,
      const Call& call) override {
    check_piece(from, table.destination[idx(rank_)], call, "source");
    check_piece(to, table.source[idx(rank_)], call, "destination");
    return issue(
        CollectiveKind::exchange_sum,
        from,
        call,
        [this, to, &table, accumulate](const Meeting::Slot& slot) {
          const at::Tensor& mine = slot.published[idx(rank_)].source;
          std::vector<std::int64_t> got(idx(size()));
          const auto theirs = [&](const Box& box) -> const at::Tensor& {
            got[idx(box.destination)] += box.elements() * bytes_of(mine);
            return shown(slot, box.destination, table.destination, mine);
          };
          sum_boxes(to, table, rank_, accumulate, [&](const Box& box) {
            return kernels::Summand{theirs(box), at_destination(box)};
          });
          count(got);
        });
  }

  void broadcast(const at::Tensor& tensor, int root, const Call& call) override {
    check_contiguous(tensor, call);
    issue(
        CollectiveKind::broadcast,
        tensor,
        call,
        [this, &tensor, root](const Meeting::Slot& slot) {
          std::vector<std::int64_t> got(idx(size()));
          if (rank_ != root) {
            copy_all(tensor, alike(slot, root, tensor));
            got[idx(root)] = static_cast<std::int64_t>(tensor.nbytes());
          }
          count(got);
        })
        ->wait();
  }

  void reduce(const at::Tensor& tensor, int root, const Call& call) override {
    check_contiguous(tensor, call);
    issue(CollectiveKind::reduce, tensor, call, [this, &tensor, root](const Meeting::Slot& slot) {
      std::vector<std::int64_t> got(idx(size()));
      if (rank_ == root) {
        std::vector<at::Tensor> others;
        for (int r = 0; r < size(); ++r) {
          if (r != root) {
            others.push_back(alike(slot, r, tensor));
            got[idx(r)] = static_cast<std::int64_t>(tensor.nbytes());
          }
        }
        add_all(tensor, others);
      }
      count(got);
    })->wait();
  }

  std::unique_ptr<Pending> shift(
      const at::Tensor& from, const at::Tensor& to, int hops, const Call& call) override {
    check_contiguous(from, call);
    check_contiguous(to, call);
    const int source = ((rank_ - hops) % size() + size()) % size();
    return issue(CollectiveKind::shift, from, call, [this, to, source](const Meeting::Slot& slot) {
      std::vector<std::int64_t> got(idx(size()));
      copy_all(to, alike(slot, source, to));
      got[idx(source)] = static_cast<std::int64_t>(to.nbytes());
      count(got);
    });
  }

  void barrier(const Call& call) override {
    issue(CollectiveKind::barrier, {}, call, [](const Meeting::Slot&) {})->wait();
  }

 private:
  // An operation of this rank that is issued; `read` runs when all have.
  template <typename Read>
  class Operation final : public Pending {
   public:
    Operation(LocalCommunicator& owner, std::int64_t number, bool stable, Read read)
        : owner_(owner), number_(number), stable_(stable), read_(std::move(read)) {
      owner_.under_way_[idx(number_ % Meeting::kSlots)] = this;
    }
    ~Operation() override {
      Pending*& mine = owner_.under_way_[idx(number_ % Meeting::kSlots)];
      if (mine == this) {
        mine = nullptr;
      }
    }

    void wait() override {
      if (!done_) {
        owner_.complete(number_, stable_, read_);
        done_ = true;
      }
    }

   private:
    LocalCommunicator& owner_;
    std::int64_t number_;
    bool stable_;
    Read read_;
    bool done_ = false;
  };

  // `reached`: issued, or what departed from a slot; a rank is late that has not got past `number`.
  [[nodiscard]] std::string late(
      const std::vector<std::atomic<std::int64_t>>& reached,
      std::int64_t number,
      const std::string& what) const {
    std::vector<int> missing;
    for (std::size_t r = 0; r < meeting_->ranks.size(); ++r) {
      if (reached[r].load() <= number) {
        missing.push_back(meeting_->ranks[r]);
      }
    }
    return fmt::format(
        "rank {} waited {} ms in {} for rank{} {}; that rank is stuck, slow or gone. "
        "Give --timeout more seconds to wait longer",
        meeting_->ranks[idx(rank_)],
        meeting_->world.deadline().count(),
        what,
        missing.size() == 1 ? "" : "s",
        fmt::join(missing, ", "));
  }

  template <typename Read>
  std::unique_ptr<Pending> issue(
      CollectiveKind kind, const at::Tensor& source, const Call& call, Read read) {
    Meeting& meeting = *meeting_;
    meeting.check_not_aborted();
    const std::int64_t number = meeting.issued[idx(rank_)].load();
    Meeting::Slot& slot = meeting.slots[idx(number % Meeting::kSlots)];
    std::string what = fmt::format("{} of {}", name(kind), to_string(call));
    const std::int64_t before = number - Meeting::kSlots;  // had the slot
    if (slot.departed[idx(rank_)].load() <= before) {      // still has: it is completed early
      if (under_way_[idx(number % Meeting::kSlots)] == nullptr) {
        throw std::logic_error(slot.published[idx(rank_)].what + " was never waited for");
      }
      under_way_[idx(number % Meeting::kSlots)]->wait();
    }
    meeting.await(
        [&] { return slot.left_by_all(before); },
        [&] { return late(slot.departed, before, what + " (an earlier operation is not over)"); });
    slot.published[idx(rank_)] = {
        .kind = kind,
        .call = call,
        .source = source,
        .ready = Mark::here(),
        .what = std::move(what)};
    meeting.issued[idx(rank_)].store(number + 1);
    meeting.announce();
    return std::make_unique<Operation<Read>>(*this, number, call.stable_source, std::move(read));
  }

  template <typename Read>
  void complete(std::int64_t number, bool stable, Read& read) {
    Meeting& meeting = *meeting_;
    Meeting::Slot& slot = meeting.slots[idx(number % Meeting::kSlots)];
    Published& mine = slot.published[idx(rank_)];
    meeting.await(
        [&] {
          return std::all_of(meeting.issued.begin(), meeting.issued.end(), [&](const auto& issued) {
            return issued.load() > number;
          });
        },
        [&] { return late(meeting.issued, number, mine.what); });
    for (int r = 0; r < size(); ++r) {
      const Published& theirs = slot.published[idx(r)];
      if (theirs.what != mine.what) {
        throw CommunicatorError(fmt::format(
            "ranks disagree about operation {} of their group: rank {} is in {}, rank {} in {}",
            number,
            meeting.ranks[idx(rank_)],
            mine.what,
            meeting.ranks[idx(r)],
            theirs.what));
      }
    }
    const FinishOnThrow finishing;
    {
      const CopyScope copying;
      for (const Published& theirs : slot.published) {
        Mark::wait(theirs.ready);
      }
      read(slot);
      slot.read[idx(rank_)] = Mark::here();
    }
    Mark::wait(slot.read[idx(rank_)]);
    if (stable) {
      slot.departed[idx(rank_)].store(number + 1);
      meeting.announce();
      return;
    }
    // Only a rank's own entry may be dropped, and only after everybody has read it: a stable source
    // stays until the slot is used again, which keeps nothing alive that is not alive anyway.
    const std::string what = mine.what;
    slot.departed[idx(rank_)].store(number + 1);
    meeting.announce();
    meeting.await(
        [&] { return slot.left_by_all(number); },
        [&] { return late(slot.departed, number, what + " (to read its results)"); });
    for (const MarkPtr& done : slot.read) {
      Mark::wait(done);
    }
    if (meeting.issued[idx(rank_)].load() <= number + Meeting::kSlots) {
      mine.source.reset();
    }
  }

  void count(const std::vector<std::int64_t>& got) {
    for (std::size_t r = 0; r < got.size(); ++r) {
      if (static_cast<int>(r) != rank_ && got[r] > 0) {
        LocalWorld::AtomicCounters& counters = meeting_->world.counters[idx(meeting_->ranks[r])];
        counters.bytes.fetch_add(got[r], std::memory_order_relaxed);
        counters.messages.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }

  static std::int64_t bytes_of(const at::Tensor& tensor) {
    return static_cast<std::int64_t>(tensor.element_size());
  }

  // What rank `peer` shows in this operation, which must be the piece that the table says, of the
  // type and on the kind of device of `mine`.
  [[nodiscard]] const at::Tensor& shown(
      const Meeting::Slot& slot,
      int peer,
      const std::vector<std::int64_t>& elements,
      const at::Tensor& mine) const {
    const at::ScalarType type = mine.scalar_type();
    const Published& theirs = slot.published[idx(peer)];
    const std::int64_t expected = elements[idx(peer)];
    const at::Tensor& m = theirs.source;
    if (m.numel() != expected || m.scalar_type() != type || m.device() != mine.device()) {
      throw CommunicatorError(fmt::format(
          "ranks disagree about {}: rank {} shows {} elements of {}, rank {} expects {} of {}",
          theirs.what,
          meeting_->ranks[idx(peer)],
          m.numel(),
          c10::toString(m.scalar_type()),
          meeting_->ranks[idx(rank_)],
          expected,
          c10::toString(type)));
    }
    return m;
  }

  // A tensor of rank `peer` that must be like mine.
  [[nodiscard]] const at::Tensor& alike(
      const Meeting::Slot& slot, int peer, const at::Tensor& mine) const {
    const Published& theirs = slot.published[idx(peer)];
    const at::Tensor& tensor = theirs.source;
    if (tensor.numel() != mine.numel() || tensor.scalar_type() != mine.scalar_type() ||
        tensor.device() != mine.device()) {
      throw CommunicatorError(fmt::format(
          "ranks disagree about {}: {} elements of {} on rank {}, {} of {} on rank {}",
          theirs.what,
          tensor.numel(),
          c10::toString(tensor.scalar_type()),
          meeting_->ranks[idx(peer)],
          mine.numel(),
          c10::toString(mine.scalar_type()),
          meeting_->ranks[idx(rank_)]));
    }
    return tensor;
  }

  std::shared_ptr<Meeting> meeting_;
  int rank_;
  std::array<Pending*, Meeting::kSlots> under_way_{};  // the operation issued last in each slot
};

class LocalCommunicators final : public Communicators {
 public:
  LocalCommunicators(LocalWorld& world, int rank, int size)
      : world_(world), rank_(rank), size_(size) {
    std::vector<int> all;
    for (int r = 0; r < size; ++r) {
      all.push_back(r);
    }
    everyone_ = all;
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Communicator& world() override { return group(everyone_); }

  Communicator& group(const std::vector<int>& ranks) override {
    const auto found = made_.find(ranks);
    if (found != made_.end()) {
      return *found->second;
    }
    const auto me = std::find(ranks.begin(), ranks.end(), rank_);
    if (me == ranks.end() || !std::is_sorted(ranks.begin(), ranks.end())) {
      throw std::invalid_argument(fmt::format(
          "group of ranks {}: must ascend and contain rank {}", fmt::join(ranks, ", "), rank_));
    }
    std::shared_ptr<Meeting> meeting;
    {
      const std::lock_guard lock(world_.mutex);
      auto& shared = world_.meetings[ranks];
      if (shared == nullptr) {
        shared = std::make_shared<Meeting>(world_, ranks);
      }
      meeting = shared;
    }
    auto made = std::make_unique<LocalCommunicator>(
        std::move(meeting), static_cast<int>(me - ranks.begin()));
    return *made_.emplace(ranks, std::move(made)).first->second;
  }

  Counters counters() const override {
    const auto& mine = world_.counters[idx(rank_)];
    return {.bytes_sent = mine.bytes.load(), .messages = mine.messages.load()};
  }

  void allow(std::chrono::milliseconds least) override { world_.allowed.store(least); }

  void abort(const std::string& message) override { stop(message, true); }

  bool recovers() const override { return true; }
  void interrupt(const std::string& message) override { stop(message, false); }
  std::string recover() override {
    finish_streams();  // what peers show in their slots is given up below, once all are here
    made_.clear();
    std::unique_lock lock(world_.mutex);
    const std::int64_t before = world_.recoveries;
    world_.recovering.push_back(rank_);
    if (std::cmp_equal(world_.recovering.size(), size_) && !world_.for_good) {
      world_.meetings.clear();
      world_.recovering.clear();
      world_.recovered_from = std::exchange(world_.reason, {});
      world_.aborted.store(false);
      ++world_.recoveries;
      world_.changed.notify_all();
      return world_.recovered_from;
    }
    const bool came = world_.changed.wait_for(
        lock, world_.deadline(), [&] { return world_.recoveries != before || world_.for_good; });
    if (world_.recoveries != before) {
      return world_.recovered_from;
    }
    if (came) {
      throw Aborted(world_.reason);
    }
    std::vector<int> missing;
    for (int r = 0; r < size_; ++r) {
      if (std::find(world_.recovering.begin(), world_.recovering.end(), r) ==
          world_.recovering.end()) {
        missing.push_back(r);
      }
    }
    throw CommunicatorError(fmt::format(
        "rank {} waited {} ms for all ranks to abort the interrupted operation ({}): rank{} {} did "
        "not arrive",
        rank_,
        world_.deadline().count(),
        world_.reason,
        missing.size() == 1 ? "" : "s",
        fmt::join(missing, ", ")));
  }

 private:
  void stop(const std::string& message, bool for_good) {
    std::vector<std::shared_ptr<Meeting>> all;
    {
      const std::lock_guard lock(world_.mutex);
      if (for_good && !world_.for_good) {
        world_.for_good = true;
        world_.changed.notify_all();
        if (!world_.recovering.empty()) {
          world_.reason = message;  // what they wait for is over
        }
      }
      if (world_.aborted.load()) {
        return;
      }
      world_.reason = message;
      world_.aborted.store(true);
      for (const auto& [ranks, meeting] : world_.meetings) {
        all.push_back(meeting);
      }
    }
    for (const auto& meeting : all) {
      {
        const std::lock_guard lock(meeting->mutex);
      }
      meeting->changed.notify_all();
    }
  }

  LocalWorld& world_;
  int rank_;
  int size_;
  std::vector<int> everyone_;
  std::map<std::vector<int>, std::unique_ptr<LocalCommunicator>> made_;
};

}  // namespace

std::unique_ptr<Communicators> communicators(LocalWorld& world, int rank, int size) {
  return std::make_unique<LocalCommunicators>(world, rank, size);
}

}  // namespace paradyse::local
