#include "src/plan/simulate/memory_trail.h"

#include <algorithm>

#include "src/plan/cost/ledger.h"

namespace paradyse {
namespace {

class Trailing final : public Ledger {
 public:
  Trailing(
      const Timeline& timeline,
      Seat seat,
      Precision precision,
      std::int64_t base,
      MemoryTrail& trail)
      : Ledger(timeline, seat, precision, base), trail_(trail) {}

  void prefetch(std::size_t part, int op) override {
    begin();
    Ledger::prefetch(part, op);
    end();
  }
  void forward(std::size_t part, int op) override {
    begin();
    Ledger::forward(part, op);
    end();
  }
  void begin_adjoint(std::size_t part, int op) override {
    begin();
    Ledger::begin_adjoint(part, op);
    end();
  }
  void adjoint(std::size_t part, int op) override {
    begin();
    Ledger::adjoint(part, op);
    end();
  }
  void offload(std::size_t part, ValueId value) override {
    begin();
    Ledger::offload(part, value);
    end();
  }
  void fetch(std::size_t part, ValueId value) override {
    begin();
    Ledger::fetch(part, value);
    end();
  }
  void finish() { begin(); }

 private:
  void begin() {
    if (!trail_.highest.empty() && trail_.after.size() < trail_.highest.size()) {
      trail_.after.push_back(live());
    }
    forget_peak();
  }
  void end() { trail_.highest.push_back(peak()); }

  MemoryTrail& trail_;
};

}  // namespace

MemoryTrail memory_trail(
    const Timeline& timeline, Seat seat, Precision precision, std::int64_t base_bytes) {
  const std::int64_t base = base_bytes + rope_table_bytes(timeline, precision);
  MemoryTrail trail;
  trail.footprint.peak_bytes = base;
  Trailing ledger(timeline, seat, precision, base, trail);
  walk_forward(timeline, ledger);
  trail.footprint.saved_bytes = ledger.live() - base;
  trail.footprint.offloaded_bytes = ledger.host();
  if (!timeline.empty() && !timeline.back().schedule().backward.empty()) {
    walk_backward(timeline, ledger);
  }
  ledger.finish();
  for (const std::int64_t bytes : trail.highest) {
    trail.footprint.peak_bytes = std::max(trail.footprint.peak_bytes, bytes);
  }
  return trail;
}

}  // namespace paradyse
