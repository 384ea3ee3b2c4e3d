// Words.  What a rank hands to another in one operation is one *message*: the elements of all its
// blocks, row after row, in the table's order.  Where they already lie like that in the tensor, the
// message is sent from, or received into, the tensor; else it is packed in *staging* memory.
//
// A message's tag is made of the group, the operation's number and its description, so that ranks
// that are in different operations never exchange a byte: they wait, and their watches find out.
//
// After an interruption ranks let go of their messages, meet, and only then close the wire that may
// be stuck at any byte of one, and make another (recover()).
#include "src/run/comm/gloo/communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "src/run/comm/boxes.h"
#include "src/run/kernels/cpu/regions.h"

namespace paradyse::gloo {
namespace {

// FNV-1a, folded to what c10d takes for a tag.
std::uint32_t tag_of(const std::string& where, const std::string& what) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const std::string* text : {&where, &what}) {
    for (const char c : *text) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    }
  }
  return static_cast<std::uint32_t>((hash ^ (hash >> 32)) & 0x7fffffffU);
}

// Memory between the wire and rows that are strided, or yet to be added; kept for the next
// operation.  It is outside the ranks' budgets, as the kernel's own buffers are.
class Staging {
 public:
  using Piece = std::shared_ptr<char>;

  Piece take(std::int64_t bytes) {
    const auto wanted = idx(bytes);
    auto found = free_->lower_bound(wanted);
    if (found == free_->end() || found->first > 2 * wanted + 4096) {
      found = free_->emplace(wanted, std::make_unique_for_overwrite<char[]>(wanted));
    }
    auto owned = free_->extract(found);
    const std::size_t capacity = owned.key();
    char* data = owned.mapped().release();
    return {data, [free = free_, capacity](char* memory) {
              free->emplace(capacity, std::unique_ptr<char[]>(memory));
              if (free->size() > kMost) {  // sizes of a batch that is over
                free->erase(free->begin());
              }
            }};
  }

 private:
  static constexpr std::size_t kMost = 32;
  std::shared_ptr<std::multimap<std::size_t, std::unique_ptr<char[]>>> free_ =
      std::make_shared<std::multimap<std::size_t, std::unique_ptr<char[]>>>();
};

struct GlooWorld {
  Wire* wire;
  Watch& watch;
  int run;
  int rank;
  int recoveries = 0;
  Counters counters = {};
  Staging staging = {};

  // What ranks share until they recover, or the run ends: "3/0".
  [[nodiscard]] std::string epoch() const { return fmt::format("{}/{}", run, recoveries); }
};

// What one rank hands to another: regions of contiguous memory, and where each lies in the message.
struct Parcel {
  struct Chunk {
    Region here;
    Region in_message;
  };
  char* data = nullptr;
  std::int64_t item = 1;  // bytes of an element
  std::int64_t elements = 0;
  std::vector<Chunk> chunks;

  void add(const at::Tensor& tensor, const Region& here, const Box& box) {
    data = data_of(tensor);
    item = static_cast<std::int64_t>(tensor.element_size());
    chunks.push_back({here, packed(box, elements)});
    elements += box.elements();
  }
  [[nodiscard]] std::int64_t bytes() const { return elements * item; }
  // Where all of it lies as it does in the message; else nullptr.
  [[nodiscard]] char* as_it_lies() const {
    if (chunks.empty()) {
      return nullptr;
    }
    const std::int64_t first = chunks.front().here.offset;
    const bool alike = std::all_of(chunks.begin(), chunks.end(), [&](const Chunk& chunk) {
      return chunk.here.offset - first == chunk.in_message.offset &&
             chunk.here.loops == chunk.in_message.loops;
    });
    return alike ? data + first * item : nullptr;
  }
  void pack(char* message) const {
    for (const Chunk& chunk : chunks) {
      kernels::copy_region(message, chunk.in_message, data, chunk.here, item);
    }
  }
  void unpack(const char* message) const {
    for (const Chunk& chunk : chunks) {
      kernels::copy_region(data, chunk.here, message, chunk.in_message, item);
    }
  }
};

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(GlooWorld& world, std::vector<int> ranks)
      : world_(world),
        ranks_(std::move(ranks)),
        rank_(static_cast<int>(
            std::find(ranks_.begin(), ranks_.end(), world.rank) - ranks_.begin())) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }

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
    auto operation = issue("exchange", call, elements(table), from.scalar_type());
    operation->keep = {from, to};
    std::vector<Parcel> out(idx(size()));
    std::vector<Parcel> in(idx(size()));
    std::vector<const Box*> own;
    for (const Box& box : table.boxes) {
      if (box.source == rank_ && box.destination == rank_) {
        own.push_back(&box);
      } else if (box.source == rank_) {
        out[idx(box.destination)].add(from, at_source(box), box);
      } else if (box.destination == rank_) {
        in[idx(box.source)].add(to, at_destination(box), box);
      }
    }
    for (int hop = 1; hop < size(); ++hop) {
      const int r = (rank_ + size() - hop) % size();
      if (in[idx(r)].bytes() > 0) {
        operation->receive(r, in[idx(r)].as_it_lies(), in[idx(r)].bytes());
      }
    }
    operation->send_all(out);
    for (const Box* box : own) {
      copy_region(to, at_destination(*box), from, at_source(*box));
    }
    operation->finish = [parcels = std::move(in)](const Operation& done) {
      for (const Incoming& message : done.incoming) {
        if (message.staging != nullptr) {
          parcels[idx(message.rank)].unpack(message.staging.get());
        }
      }
    };
    return operation;
  }

  std::unique_ptr<Pending> exchange_sum(
      const at::Tensor& from,
      const at::Tensor& to,
      const Transfer& table,
      bool accumulate,
      const Call& call) override {
    check_piece(from, table.destination[idx(rank_)], call, "source");
    check_piece(to, table.source[idx(rank_)], call, "destination");
    auto operation = issue("exchange_sum", call, elements(table), from.scalar_type());
    operation->keep = {from, to};
    const auto item = static_cast<std::int64_t>(from.element_size());
    std::vector<Parcel> out(idx(size()));
    std::vector<std::int64_t> in(idx(size()));
    for (const Box& box : table.boxes) {
      if (box.destination == rank_ && box.source != rank_) {
        out[idx(box.source)].add(from, at_destination(box), box);
      } else if (box.source == rank_ && box.destination != rank_) {
        in[idx(box.destination)] += box.elements() * item;
      }
    }
    for (int hop = 1; hop < size(); ++hop) {
      const int r = (rank_ + size() - hop) % size();
      if (in[idx(r)] > 0) {
        operation->receive(r, nullptr, in[idx(r)]);
      }
    }
    operation->send_all(out);
    operation->finish =
        [this, from, to, accumulate, &table, bytes = std::move(in)](const Operation& done) {
          // Where each box lies: in my own piece, or next in its sender's message.
          std::map<const Box*, kernels::Summand> places;
          std::vector<at::Tensor> messages(idx(size()));
          std::vector<std::int64_t> next(idx(size()));
          for (const Incoming& message : done.incoming) {
            messages[idx(message.rank)] = received(message, bytes[idx(message.rank)], from);
          }
          for (const Box& box : table.boxes) {
            if (box.source != rank_) {
              continue;
            }
            if (box.destination == rank_) {
              places[&box] = {from, at_destination(box)};
            } else {
              std::int64_t& offset = next[idx(box.destination)];
              places[&box] = {messages[idx(box.destination)], packed(box, offset)};
              offset += box.elements();
            }
          }
          sum_boxes(to, table, rank_, accumulate, [&](const Box& box) { return places.at(&box); });
        };
    return operation;
  }

  void broadcast(const at::Tensor& tensor, int root, const Call& call) override {
    check_contiguous(tensor, call);
    auto operation = issue("broadcast", call, tensor.numel(), tensor.scalar_type());
    if (rank_ == root) {
      operation->send_all(std::vector<Parcel>(idx(size()), whole(tensor)));
    } else {
      operation->receive(root, data_of(tensor), whole(tensor).bytes());
    }
    operation->wait();
  }

  void reduce(const at::Tensor& tensor, int root, const Call& call) override {
    check_contiguous(tensor, call);
    auto operation = issue("reduce", call, tensor.numel(), tensor.scalar_type());
    if (rank_ != root) {
      std::vector<Parcel> out(idx(size()));
      out[idx(root)] = whole(tensor);
      operation->send_all(out);
    } else {
      for (int r = 0; r < size(); ++r) {
        if (r != root) {
          operation->receive(r, nullptr, whole(tensor).bytes());
        }
      }
      operation->finish = [&tensor](const Operation& done) {
        std::vector<at::Tensor> others;
        for (const Incoming& message : done.incoming) {
          others.push_back(received(message, whole(tensor).bytes(), tensor));
        }
        add_all(tensor, others);
      };
    }
    operation->wait();
  }

  std::unique_ptr<Pending> shift(
      const at::Tensor& from, const at::Tensor& to, int hops, const Call& call) override {
    check_contiguous(from, call);
    check_contiguous(to, call);
    if (from.scalar_type() != to.scalar_type()) {
      throw std::logic_error(to_string(call) + ": source and destination have different types");
    }
    // Pieces may differ in size from rank to rank, so that no size is common to all.
    auto operation = issue("shift", call, 0, from.scalar_type());
    operation->keep = {from, to};
    const int step = (hops % size() + size()) % size();
    if (step == 0) {
      std::memcpy(data_of(to), data_of(from), to.nbytes());
      return operation;
    }
    operation->receive((rank_ - step + size()) % size(), data_of(to), whole(to).bytes());
    std::vector<Parcel> out(idx(size()));
    out[idx((rank_ + step) % size())] = whole(from);
    operation->send_all(out);
    return operation;
  }

  // A byte from everyone to everyone: who is late is then plain to each.
  void barrier(const Call& call) override {
    auto operation = issue("barrier", call, 0, at::kByte);
    for (int hop = 1; hop < size(); ++hop) {
      operation->receive((rank_ + size() - hop) % size(), nullptr, 1);
    }
    static char nothing = 0;
    for (int hop = 1; hop < size(); ++hop) {
      operation->send((rank_ + hop) % size(), &nothing, 1);
    }
    operation->wait();
  }

  // Waits for what is still sent of operations up to this one.
  void finish_until(std::int64_t number) {
    while (!lingering_.empty() && lingering_.front().number <= number) {
      const Lingering& old = lingering_.front();
      for (const Outgoing& message : old.outgoing) {
        world_.watch.await(*message.message, {ranks_[idx(message.rank)], old.where, old.what});
      }
      lingering_.pop_front();
    }
  }
  void finish() { finish_until(number_); }

  // "" when no operation is held.
  [[nodiscard]] std::string held() const {
    return under_way_.empty() ? "" : under_way_.begin()->second->what;
  }

 private:
  static constexpr std::size_t kRoom = 8;  // operations under way at once

  struct Incoming {
    int rank = 0;
    Staging::Piece staging;  // absent: straight into the tensor
    std::unique_ptr<Message> message;
  };
  struct Outgoing {
    int rank = 0;
    Staging::Piece staging;
    std::unique_ptr<Message> message;
  };

  // What is staged of it, as elements like these.
  static at::Tensor received(const Incoming& message, std::int64_t bytes, const at::Tensor& like) {
    return at::from_blob(
        message.staging.get(),
        {bytes / static_cast<std::int64_t>(like.element_size())},
        at::TensorOptions().dtype(like.scalar_type()));
  }

  // An operation of this rank that is issued.
  class Operation final : public Pending {
   public:
    Operation(
        GlooCommunicator& its_owner, std::int64_t its_number, std::string its_what, bool stable)
        : owner(its_owner),
          number(its_number),
          what(std::move(its_what)),
          where(owner.place(number)),
          tag(tag_of(where, what)),
          stable_source(stable) {
      owner.under_way_[number] = this;
    }
    ~Operation() override {
      if (!done_) {
        owner.under_way_.erase(number);
      }
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    // `into` absent: to staging memory.
    void receive(int from, char* into, std::int64_t bytes) {
      if (bytes == 0) {
        return;
      }
      Incoming& message = incoming.emplace_back();
      message.rank = from;
      if (into == nullptr) {
        message.staging = owner.world_.staging.take(bytes);
        into = message.staging.get();
      }
      guarded(from, [&] {
        message.message = owner.world_.wire->receive(into, bytes, owner.ranks_[idx(from)], tag);
      });
    }

    void send(int to, const char* data, std::int64_t bytes, Staging::Piece staging = nullptr) {
      Outgoing& message = outgoing.emplace_back();
      message.rank = to;
      message.staging = std::move(staging);
      guarded(to, [&] {
        message.message = owner.world_.wire->send(data, bytes, owner.ranks_[idx(to)], tag);
      });
    }

    // Each rank its parcel; all but the own, and counted.  Neighbours first: not all to one.
    void send_all(const std::vector<Parcel>& parcels) {
      for (int hop = 1; hop < owner.size(); ++hop) {
        const int to = (owner.rank_ + hop) % owner.size();
        const Parcel& parcel = parcels[idx(to)];
        if (parcel.bytes() == 0) {
          continue;
        }
        if (char* const message = parcel.as_it_lies(); message != nullptr) {
          send(to, message, parcel.bytes());
        } else {
          Staging::Piece packed = owner.world_.staging.take(parcel.bytes());
          parcel.pack(packed.get());
          const char* data = packed.get();
          send(to, data, parcel.bytes(), std::move(packed));
        }
        owner.world_.counters.bytes_sent += parcel.bytes();
        ++owner.world_.counters.messages;
      }
    }

    void wait() override {
      if (done_) {
        return;
      }
      for (const Incoming& message : incoming) {
        owner.await(*message.message, message.rank, *this);
      }
      if (finish) {
        finish(*this);
        finish = nullptr;
      }
      // A stable source may still be on its way when all of this rank's results are there.
      if (!stable_source) {
        sent();
      } else if (!outgoing.empty()) {
        owner.lingering_.push_back({number, what, where, std::move(outgoing), keep.front()});
      }
      done_ = true;
      owner.under_way_.erase(number);
    }

    void sent() {
      for (const Outgoing& message : outgoing) {
        owner.await(*message.message, message.rank, *this);
      }
    }

    GlooCommunicator& owner;
    std::int64_t number;
    std::string what;
    std::string where;
    std::uint32_t tag;
    bool stable_source;
    std::vector<at::Tensor> keep;  // source, destination: alive while messages read or fill them
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    std::function<void(const Operation& done)> finish;  // when all has come

   private:
    template <typename Body>
    void guarded(int peer, const Body& body) {
      try {
        body();
      } catch (const std::runtime_error& error) {  // the connection is gone
        owner.world_.watch.lost({owner.ranks_[idx(peer)], where, what}, error.what());
      }
    }

    bool done_ = false;
  };

  // Of an operation that is over but for its sends.
  struct Lingering {
    std::int64_t number;
    std::string what;
    std::string where;
    std::vector<Outgoing> outgoing;
    at::Tensor source;
  };

  static std::int64_t elements(const Transfer& table) {
    std::int64_t sum = 0;
    for (const std::int64_t piece : table.destination) {
      sum += piece;
    }
    return sum;
  }

  static Parcel whole(const at::Tensor& tensor) {
    Parcel parcel;
    if (const std::int64_t n = tensor.numel(); n > 0) {
      Box all;
      if (n > 1) {
        all.loops.push_back({n, 1, 1});
      }
      parcel.add(tensor, at_source(all), all);
    }
    return parcel;
  }

  [[nodiscard]] std::string place(std::int64_t number) const {
    return fmt::format(
        "operation {} of ranks {} (run {}{})",
        number,
        fmt::join(ranks_, ", "),
        world_.run,
        world_.recoveries == 0 ? "" : fmt::format(", recovery {}", world_.recoveries));
  }

  std::unique_ptr<Operation> issue(
      const char* kind, const Call& call, std::int64_t count, at::ScalarType type) {
    world_.watch.check();
    std::string what = fmt::format("{} of {}", kind, to_string(call));
    if (under_way_.size() >= kRoom) {
      under_way_.begin()->second->wait();
    }
    finish_until(number_ - static_cast<std::int64_t>(kRoom));
    what += fmt::format(" ({} elements of {})", count, c10::toString(type));
    return std::make_unique<Operation>(*this, number_++, std::move(what), call.stable_source);
  }

  void await(Message& message, int peer, const Operation& operation) {
    world_.watch.await(message, {ranks_[idx(peer)], operation.where, operation.what});
  }

  GlooWorld& world_;
  std::vector<int> ranks_;  // of the world
  int rank_;
  std::int64_t number_ = 0;                       // of the next operation
  std::map<std::int64_t, Operation*> under_way_;  // [number]
  std::deque<Lingering> lingering_;
};

class GlooCommunicators final : public RankCommunicators {
 public:
  GlooCommunicators(Wire& wire, Reconnect reconnect, Watch& watch, int run, int rank, int size)
      : world_{.wire = &wire, .watch = watch, .run = run, .rank = rank},
        reconnect_(std::move(reconnect)) {
    for (int r = 0; r < size; ++r) {
      everyone_.push_back(r);
    }
    watch.enter(world_.epoch());
  }
  ~GlooCommunicators() override { world_.watch.enter(""); }

  int rank() const override { return world_.rank; }
  int size() const override { return static_cast<int>(everyone_.size()); }
  Communicator& world() override { return group(everyone_); }

  Communicator& group(const std::vector<int>& ranks) override {
    auto& made = made_[ranks];
    if (made == nullptr) {
      if (std::find(ranks.begin(), ranks.end(), world_.rank) == ranks.end() ||
          !std::is_sorted(ranks.begin(), ranks.end())) {
        made_.erase(ranks);
        throw std::invalid_argument(fmt::format(
            "group of ranks {}: must ascend and contain rank {}",
            fmt::join(ranks, ", "),
            world_.rank));
      }
      made = std::make_unique<GlooCommunicator>(world_, ranks);
    }
    return *made;
  }

  Counters counters() const override { return world_.counters; }
  void allow(std::chrono::milliseconds least) override { world_.watch.allow(least); }
  void abort(const std::string& message) override {
    world_.watch.fail(message, /*bad_input=*/false);
  }

  bool recovers() const override { return true; }
  void interrupt(const std::string& message) override { world_.watch.interrupt(message); }
  // What this rank received or sent is let go of before it meets the others; the old connections go
  // when all have met, so that none breaks under a rank that still waits.
  std::string recover() override {
    for (const auto& [ranks, communicator] : made_) {
      if (const std::string what = communicator->held(); !what.empty()) {
        throw std::logic_error("recover(): still held: " + what);
      }
    }
    made_.clear();
    world_.staging = {};
    const std::string reason = world_.watch.meet(
        "recovery/" + world_.epoch(),
        size(),
        fmt::format(
            "for all ranks to abort the interrupted operation ({})", world_.watch.interruption()));
    ++world_.recoveries;
    world_.watch.enter(world_.epoch());
    world_.wire = &reconnect_();
    return reason;
  }

  void finish() override {
    for (const auto& [ranks, communicator] : made_) {
      communicator->finish();
    }
  }

 private:
  GlooWorld world_;
  Reconnect reconnect_;
  std::vector<int> everyone_;
  std::map<std::vector<int>, std::unique_ptr<GlooCommunicator>> made_;
};

}  // namespace

std::unique_ptr<RankCommunicators> communicators(
    Wire& wire, const Reconnect& reconnect, Watch& watch, int run, int rank, int size) {
  return std::make_unique<GlooCommunicators>(wire, reconnect, watch, run, rank, size);
}

}  // namespace paradyse::gloo
