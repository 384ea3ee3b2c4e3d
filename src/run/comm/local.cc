// The `local` backend: ranks are threads of one process.
//
// Words.  An *operation* has a number, counted by each rank of a group; all ranks issue the same
// ones in the same order.  To *issue* is to publish a pointer to the source in the operation's
// slot; to *complete* is to wait until all have issued, read what the table says straight from the
// peers' memory, and *depart*.  A source may be changed once all have departed.  Slots are reused
// in turn; an operation waits for its slot to be free.
//
// Waiting yields a few times, then sleeps on a condition variable with a deadline: pure spinning is
// ruinous with more ranks than cores.
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/accountant.h"
#include "paradyse/communicator.h"
#include "src/run/comm/sum_rows.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

enum class Kind { exchange, exchange_sum, broadcast, reduce, shift, barrier };

const char* name(Kind kind) {
  static const char* const kNames[] = {
      "exchange", "exchange_sum", "broadcast", "reduce", "shift", "barrier"};
  return kNames[static_cast<int>(kind)];
}

// What a rank shows its peers during an operation.
struct Published {
  Kind kind = Kind::barrier;
  Call call;
  at::Tensor source;  // kept alive while peers may read, also when its rank fails
  std::string what;   // kind and call as text, made at once: views die with their program
};

// Shared by all ranks.
struct World {
  explicit World(int ranks, LocalOptions given)
      : options(given), counters(static_cast<std::size_t>(ranks)) {}

  struct AtomicCounters {
    std::atomic<std::int64_t> bytes{0};
    std::atomic<std::int64_t> messages{0};
  };

  LocalOptions options;
  std::vector<AtomicCounters> counters;
  std::atomic<bool> aborted{false};
  std::mutex mutex;  // of what follows
  std::string reason;
  std::map<std::vector<int>, std::shared_ptr<struct Meeting>> meetings;
};

// Where the ranks of one group meet.
struct Meeting {
  static constexpr std::int64_t kSlots = 8;  // operations under way at once, at most

  Meeting(World& its_world, std::vector<int> group_ranks)
      : world(its_world), ranks(std::move(group_ranks)), issued(ranks.size()) {
    for (Slot& slot : slots) {
      slot.published.resize(ranks.size());
      slot.departed = std::vector<std::atomic<std::int64_t>>(ranks.size());
    }
  }

  struct Slot {
    std::vector<Published> published;                 // [rank]
    std::vector<std::atomic<std::int64_t>> departed;  // [rank] 1 + the last operation it left here

    [[nodiscard]] bool left_by_all(std::int64_t number) const {
      return std::all_of(departed.begin(), departed.end(), [&](const auto& of_rank) {
        return of_rank.load() > number;
      });
    }
  };

  World& world;
  const std::vector<int> ranks;                   // world ranks
  std::vector<std::atomic<std::int64_t>> issued;  // operations of each rank
  std::array<Slot, kSlots> slots;
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> sleepers{0};

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }

  void announce() {
    if (sleepers.load() > 0) {
      {
        const std::lock_guard lock(mutex);
      }
      changed.notify_all();
    }
  }

  // Returns once ready() holds; throws when a rank has failed, or past the deadline with late().
  template <typename Ready, typename Late>
  void await(Ready ready, Late late) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) {
        return;
      }
      std::this_thread::yield();
    }
    const auto deadline = Clock::now() + world.options.deadline;
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    const bool came =
        changed.wait_until(lock, deadline, [&] { return ready() || world.aborted.load(); });
    sleepers.fetch_sub(1);
    lock.unlock();
    if (ready()) {
      return;
    }
    if (world.aborted.load()) {
      const std::lock_guard world_lock(world.mutex);
      throw Aborted(world.reason);
    }
    if (!came) {
      throw CommunicatorError(late());
    }
  }

  void check_not_aborted() const {
    if (world.aborted.load()) {
      const std::lock_guard lock(world.mutex);
      throw Aborted(world.reason);
    }
  }
};

// Rows of `table`'s block, from a peer's matrix into mine (or the other way round).
struct View {
  char* data = nullptr;
  std::int64_t stride = 0;  // bytes from row to row
  std::int64_t item = 0;    // bytes of an element

  explicit View(const at::Tensor& tensor)
      : data(static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()))),
        item(static_cast<std::int64_t>(tensor.element_size())) {
    stride = (tensor.dim() >= 2 ? tensor.stride(0) : 1) * item;
  }
  [[nodiscard]] char* at(std::int64_t row, std::int64_t col) const {
    return data + row * stride + col * item;
  }
};

void copy_rows(
    char* to,
    std::int64_t to_stride,
    const char* from,
    std::int64_t from_stride,
    std::int64_t rows,
    std::int64_t row_bytes) {
  if (to_stride == row_bytes && from_stride == row_bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(rows * row_bytes));
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * to_stride, from + r * from_stride, static_cast<std::size_t>(row_bytes));
  }
}

void check_matrix(const at::Tensor& tensor, Extent extent, const Call& call, const char* which) {
  const bool rows_contiguous = tensor.dim() == 2 && (tensor.size(1) <= 1 || tensor.stride(1) == 1);
  if (!rows_contiguous || tensor.size(0) != extent.rows || tensor.size(1) != extent.cols) {
    throw std::logic_error(fmt::format(
        "{}: the {} is not the [{}, {}] matrix of the copy table",
        to_string(call),
        which,
        extent.rows,
        extent.cols));
  }
}

void check_contiguous(const at::Tensor& tensor, const Call& call) {
  if (!tensor.is_contiguous()) {
    throw std::logic_error(to_string(call) + ": the tensor is not contiguous");
  }
}

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
    check_matrix(from, table.source[at(rank_)], call, "source");
    check_matrix(to, table.destination[at(rank_)], call, "destination");
    if (from.scalar_type() != to.scalar_type()) {
      throw std::logic_error(to_string(call) + ": source and destination have different types");
    }
    return issue(Kind::exchange, from, call, [this, to, &table](const Meeting::Slot& slot) {
      const View mine(to);
      std::vector<std::int64_t> got(static_cast<std::size_t>(size()));
      for (const Block& block : table.blocks) {
        if (block.destination != rank_ || block.elements() == 0) {
          continue;
        }
        const View theirs = view_of(slot, block.source, table.source, to.scalar_type());
        copy_rows(
            mine.at(block.destination_row, block.destination_col),
            mine.stride,
            theirs.at(block.source_row, block.source_col),
            theirs.stride,
            block.rows,
            block.cols * mine.item);
        got[at(block.source)] += block.elements() * mine.item;
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
    check_matrix(from, table.destination[at(rank_)], call, "source");
    check_matrix(to, table.source[at(rank_)], call, "destination");
    return issue(
        Kind::exchange_sum, from, call, [this, to, &table, accumulate](const Meeting::Slot& slot) {
          sum_blocks(to, table, accumulate, slot);
        });
  }

  void all_reduce(const at::Tensor& tensor, const Call& call) override {
    check_contiguous(tensor, call);
    const std::int64_t n = tensor.numel();
    const Transfer table = transfer({n, 1}, shard(0, even_cuts(n, size())), replicate(), size());
    const at::Tensor flat = tensor.view({n, 1});
    const MemoryScope scope(Category::communication, "all_reduce");
    const at::Tensor mine = at::empty({table.source[at(rank_)].rows, 1}, tensor.options());
    exchange_sum(flat, mine, table, false, call)->wait();
    exchange(mine, flat, table, call)->wait();
  }

  void broadcast(const at::Tensor& tensor, int root, const Call& call) override {
    check_contiguous(tensor, call);
    issue(Kind::broadcast, tensor, call, [this, &tensor, root](const Meeting::Slot& slot) {
      std::vector<std::int64_t> got(static_cast<std::size_t>(size()));
      if (rank_ != root) {
        const void* theirs = alike(slot, root, tensor);
        std::memcpy(View(tensor).data, theirs, tensor.nbytes());
        got[at(root)] = static_cast<std::int64_t>(tensor.nbytes());
      }
      count(got);
    })->wait();
  }

  void reduce(const at::Tensor& tensor, int root, const Call& call) override {
    check_contiguous(tensor, call);
    issue(Kind::reduce, tensor, call, [this, &tensor, root](const Meeting::Slot& slot) {
      std::vector<std::int64_t> got(static_cast<std::size_t>(size()));
      if (rank_ == root) {
        std::vector<const void*> others;
        for (int r = 0; r < size(); ++r) {
          if (r != root) {
            others.push_back(alike(slot, r, tensor));
            got[at(r)] = static_cast<std::int64_t>(tensor.nbytes());
          }
        }
        sum_into(
            View(tensor).data,
            tensor.scalar_type(),
            others,
            tensor.scalar_type(),
            tensor.numel(),
            true);
      }
      count(got);
    })->wait();
  }

  std::unique_ptr<Pending> shift(
      const at::Tensor& from, const at::Tensor& to, int hops, const Call& call) override {
    check_contiguous(from, call);
    check_contiguous(to, call);
    const int source = ((rank_ - hops) % size() + size()) % size();
    return issue(Kind::shift, from, call, [this, to, source](const Meeting::Slot& slot) {
      std::vector<std::int64_t> got(static_cast<std::size_t>(size()));
      std::memcpy(View(to).data, alike(slot, source, to), to.nbytes());
      got[at(source)] = static_cast<std::int64_t>(to.nbytes());
      count(got);
    });
  }

  void barrier(const Call& call) override {
    issue(Kind::barrier, {}, call, [](const Meeting::Slot&) {})->wait();
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  static std::size_t at(std::int64_t rank) { return static_cast<std::size_t>(rank); }

  // An operation of this rank that is issued; `read` runs when all have.
  template <typename Read>
  class Operation final : public Pending {
   public:
    Operation(LocalCommunicator& owner, std::int64_t number, bool stable, Read read)
        : owner_(owner), number_(number), stable_(stable), read_(std::move(read)) {}

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
        "rank {} waited {} ms in {} for rank{} {}; that rank is stuck, slow or gone. A longer "
        "deadline is set with --deadline",
        meeting_->ranks[at(rank_)],
        meeting_->world.options.deadline.count(),
        what,
        missing.size() == 1 ? "" : "s",
        fmt::join(missing, ", "));
  }

  template <typename Read>
  std::unique_ptr<Pending> issue(Kind kind, const at::Tensor& source, const Call& call, Read read) {
    Meeting& meeting = *meeting_;
    meeting.check_not_aborted();
    const std::int64_t number = meeting.issued[at(rank_)].load();
    Meeting::Slot& slot = meeting.slots[at(number % Meeting::kSlots)];
    std::string what = fmt::format("{} of {}", name(kind), to_string(call));
    const std::int64_t before = number - Meeting::kSlots;  // had the slot
    if (slot.departed[at(rank_)].load() <= before) {
      throw std::logic_error(fmt::format(
          "{}: at most {} operations may be under way at once; wait for {} first",
          what,
          Meeting::kSlots,
          slot.published[at(rank_)].what));
    }
    meeting.await(
        [&] { return slot.left_by_all(before); },
        [&] { return late(slot.departed, before, what + " (an earlier operation is not over)"); });
    slot.published[at(rank_)] = {
        .kind = kind, .call = call, .source = source, .what = std::move(what)};
    meeting.issued[at(rank_)].store(number + 1);
    meeting.announce();
    return std::make_unique<Operation<Read>>(*this, number, call.stable_source, std::move(read));
  }

  template <typename Read>
  void complete(std::int64_t number, bool stable, Read& read) {
    Meeting& meeting = *meeting_;
    Meeting::Slot& slot = meeting.slots[at(number % Meeting::kSlots)];
    Published& mine = slot.published[at(rank_)];
    meeting.await(
        [&] {
          return std::all_of(meeting.issued.begin(), meeting.issued.end(), [&](const auto& issued) {
            return issued.load() > number;
          });
        },
        [&] { return late(meeting.issued, number, mine.what); });
    for (int r = 0; r < size(); ++r) {
      const Published& theirs = slot.published[at(r)];
      if (theirs.what != mine.what) {
        throw CommunicatorError(fmt::format(
            "ranks disagree about operation {} of their group: rank {} is in {}, rank {} in {}",
            number,
            meeting.ranks[at(rank_)],
            mine.what,
            meeting.ranks[at(r)],
            theirs.what));
      }
    }
    read(slot);
    if (stable) {
      slot.departed[at(rank_)].store(number + 1);
      meeting.announce();
      return;
    }
    // Only a rank's own entry may be dropped, and only after everybody has read it: a stable source
    // stays until the slot is used again, which keeps nothing alive that is not alive anyway.
    const std::string what = mine.what;
    slot.departed[at(rank_)].store(number + 1);
    meeting.announce();
    meeting.await(
        [&] { return slot.left_by_all(number); },
        [&] { return late(slot.departed, number, what + " (to read its results)"); });
    if (meeting.issued[at(rank_)].load() <= number + Meeting::kSlots) {
      mine.source.reset();
    }
  }

  void count(const std::vector<std::int64_t>& got) {
    for (std::size_t r = 0; r < got.size(); ++r) {
      if (static_cast<int>(r) != rank_ && got[r] > 0) {
        World::AtomicCounters& counters = meeting_->world.counters[at(meeting_->ranks[r])];
        counters.bytes.fetch_add(got[r], std::memory_order_relaxed);
        counters.messages.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }

  // What rank `peer` shows in this operation, which must be the matrix that the table says.
  [[nodiscard]] View view_of(
      const Meeting::Slot& slot,
      int peer,
      const std::vector<Extent>& extents,
      at::ScalarType type) const {
    const Published& theirs = slot.published[at(peer)];
    const Extent extent = extents[at(peer)];
    const at::Tensor& m = theirs.source;
    if (m.size(0) != extent.rows || m.size(1) != extent.cols || m.scalar_type() != type) {
      throw CommunicatorError(fmt::format(
          "ranks disagree about {}: rank {} shows a [{}, {}] matrix of {}, rank {} expects [{}, "
          "{}] "
          "of {}",
          theirs.what,
          meeting_->ranks[at(peer)],
          m.size(0),
          m.size(1),
          c10::toString(m.scalar_type()),
          meeting_->ranks[at(rank_)],
          extent.rows,
          extent.cols,
          c10::toString(type)));
    }
    return View(m);
  }

  // A tensor of rank `peer` that must be like mine.
  [[nodiscard]] const void* alike(
      const Meeting::Slot& slot, int peer, const at::Tensor& mine) const {
    const Published& theirs = slot.published[at(peer)];
    const at::Tensor& tensor = theirs.source;
    if (tensor.numel() != mine.numel() || tensor.scalar_type() != mine.scalar_type()) {
      throw CommunicatorError(fmt::format(
          "ranks disagree about {}: {} elements of {} on rank {}, {} of {} on rank {}",
          theirs.what,
          tensor.numel(),
          c10::toString(tensor.scalar_type()),
          meeting_->ranks[at(peer)],
          mine.numel(),
          c10::toString(mine.scalar_type()),
          meeting_->ranks[at(rank_)]));
    }
    return tensor.const_data_ptr();
  }

  using Rectangle = std::array<std::int64_t, 4>;  // row, column, rows, columns
  using Landing = std::map<Rectangle, std::vector<const Block*>>;

  // Whether the rectangles cover `extent`, every element once, in bands of rows; when in doubt, no.
  static bool tile(const Landing& landing, Extent extent) {
    Rectangle band{0, 0, 0, 0};  // rows of the current band, columns covered so far
    for (const auto& [rectangle, blocks] : landing) {
      const auto [row, col, rows, cols] = rectangle;
      const bool next_band = band[3] == extent.cols || (band[2] == 0 && row == 0);
      if (next_band ? row != band[0] + band[2] || col != 0
                    : row != band[0] || rows != band[2] || col != band[3]) {
        return false;
      }
      band = next_band ? Rectangle{row, 0, rows, cols} : Rectangle{row, 0, rows, col + cols};
    }
    return (extent.elements() == 0 && landing.empty()) ||
           (band[0] + band[2] == extent.rows && band[3] == extent.cols);
  }

  // Blocks that land on the same rectangle are added in one pass; where rectangles overlap only in
  // part (shared key/value heads), block after block.
  void sum_blocks(
      const at::Tensor& to, const Transfer& table, bool accumulate, const Meeting::Slot& slot) {
    Landing landing;
    std::vector<std::int64_t> got(static_cast<std::size_t>(size()));
    const View mine(to);
    for (const Block& block : table.blocks) {
      if (block.source == rank_ && block.elements() > 0) {
        landing[{block.source_row, block.source_col, block.rows, block.cols}].push_back(&block);
        got[at(block.destination)] +=
            block.elements() *
            static_cast<std::int64_t>(slot.published[at(block.destination)].source.element_size());
      }
    }
    const bool tiled = tile(landing, table.source[at(rank_)]);
    if (!tiled && !accumulate) {
      to.zero_();
    }
    const bool add = accumulate || !tiled;
    for (const auto& [rectangle, blocks] : landing) {
      const auto [row, col, rows, cols] = rectangle;
      std::vector<View> theirs;
      bool contiguous = mine.stride == cols * mine.item;
      for (const Block* block : blocks) {
        theirs.push_back(view_of(
            slot,
            block->destination,
            table.destination,
            slot.published[at(rank_)].source.scalar_type()));
        contiguous = contiguous && theirs.back().stride == cols * theirs.back().item;
      }
      const std::int64_t steps = contiguous ? 1 : rows;
      const std::int64_t length = contiguous ? rows * cols : cols;
      std::vector<const void*> sources(blocks.size());
      for (std::int64_t r = 0; r < steps; ++r) {
        for (std::size_t b = 0; b < blocks.size(); ++b) {
          sources[b] = theirs[b].at(blocks[b]->destination_row + r, blocks[b]->destination_col);
        }
        sum_into(
            mine.at(row + r, col),
            to.scalar_type(),
            sources,
            slot.published[at(blocks.front()->destination)].source.scalar_type(),
            length,
            add);
      }
    }
    count(got);
  }

  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

class LocalCommunicators final : public Communicators {
 public:
  LocalCommunicators(World& world, int rank, int size) : world_(world), rank_(rank), size_(size) {
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
    const auto& mine = world_.counters[static_cast<std::size_t>(rank_)];
    return {.bytes_sent = mine.bytes.load(), .messages = mine.messages.load()};
  }

  void abort(const std::string& message) override {
    std::vector<std::shared_ptr<Meeting>> all;
    {
      const std::lock_guard lock(world_.mutex);
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

 private:
  World& world_;
  int rank_;
  int size_;
  std::vector<int> everyone_;
  std::map<std::vector<int>, std::unique_ptr<LocalCommunicator>> made_;
};

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

void run_local_ranks(
    int ranks,
    const LocalOptions& options,
    const std::function<void(Communicators& communicators)>& body) {
  if (ranks < 1) {
    throw std::invalid_argument(fmt::format("{} ranks: at least one is needed", ranks));
  }
  at::set_num_threads(1);
  World world(ranks, options);
  std::mutex mutex;
  std::condition_variable changed;
  int running = ranks;
  std::exception_ptr first_failure;

  const auto run = [&](int rank) {
    at::set_num_threads(1);
    LocalCommunicators communicators(world, rank, ranks);
    std::exception_ptr failure;
    try {
      body(communicators);
    } catch (...) {
      failure = std::current_exception();
      const std::lock_guard lock(mutex);
      if (!first_failure) {  // the cause is noted before peers are freed
        first_failure = failure;
      }
    }
    if (failure) {
      communicators.abort(fmt::format("rank {} failed: {}", rank, message_of(failure)));
    }
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  };

  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back(run, rank);
    }
  } catch (const std::system_error& error) {  // no more threads: those that run are freed
    const std::lock_guard lock(mutex);
    running -= ranks - static_cast<int>(threads.size());
    first_failure = std::make_exception_ptr(std::runtime_error(fmt::format(
        "rank {} of {} could not be started: {}", threads.size(), ranks, error.what())));
    LocalCommunicators(world, 0, ranks).abort("a rank could not be started");
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return running == 0 || first_failure; });
    if (!changed.wait_for(lock, options.grace, [&] { return running == 0; })) {
      std::fprintf(
          stderr,
          "paradyse: %s\nparadyse: %d of %d ranks did not stop within %lld ms after this; ending "
          "the "
          "process\n",
          message_of(first_failure).c_str(),
          running,
          ranks,
          static_cast<long long>(options.grace.count()));
      std::_Exit(70);
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first_failure) {
    std::rethrow_exception(first_failure);
  }
}

}  // namespace paradyse
