// What travels over the weight domain in a pass: gathers of weights and sums of their gradients.
#pragma once

#include <cstddef>
#include <vector>

#include "paradyse/plan/detail/op_traits.h"
#include "paradyse/plan/detail/schedule.h"

namespace paradyse {

// A gather is issued once the one before it is there; of a part that runs again, or has just run
// again, whose weights may be in use, once it is wanted.  Sums end where they begin.
//
// With overlap gathers are two ahead, and a sum ends when the next begins.  Both keep out of the
// way of what parts move inside their groups, which is waited for sooner: they begin when the part
// that runs has moved all.  Whatever groups move, they come in one order: all that is wanted begins
// before a sum is asked for or an op meets the domain itself, the sum that waits always before
// gathers.
class OverDomain {
 public:
  OverDomain(const Timeline& timeline, Machine& machine);

  // These steps of the part are to run, after what was expected before.
  void expect(std::size_t part, const std::vector<ScheduledOp>& steps);
  // All is expected.
  void begin();
  // A part begins to run these steps.
  void enter(std::size_t part, const std::vector<ScheduledOp>& steps);
  // Runs one of them.
  void run(std::size_t part, const ScheduledOp& step);
  // It is over, and what nobody reads after it is gone.
  void ran(std::size_t part, const ScheduledOp& step);
  void finish();

 private:
  struct Place {
    std::size_t part = 0;
    int op = 0;
    int turn = 0;  // of its part: a part may run forward, then again, then back
  };

  [[nodiscard]] const OpTraits& kind_of(std::size_t part, const ScheduledOp& step) const;
  void forward(std::size_t part, const ScheduledOp& step);
  // For an op that meets the domain itself.
  void make_way(std::size_t part, const ScheduledOp& step);
  void go_on_after_moves();
  void go_on();
  // The next one's part has weights, or is to get some, of another turn.
  [[nodiscard]] bool is_in_use() const;
  void issue_next();
  void begin_sum();
  void end_sum();
  [[nodiscard]] std::size_t ahead() const { return overlap_ ? 2 : 1; }

  const Timeline& timeline_;
  Machine& machine_;
  bool overlap_;
  std::ptrdiff_t moves_ = 0;  // of the part that runs, still to come
  int turns_ = 0;
  std::vector<Place> expected_;   // gathers, in the order of their use
  std::size_t wanted_ = ahead();  // so many are to be issued
  std::size_t issued_ = 0;
  std::size_t there_ = 0;
  std::size_t now_ = 0;           // the last that is there
  std::vector<Place> asked_;      // a sum that is yet to begin, if any
  std::vector<Place> under_way_;  // and one that is yet to end
};

}  // namespace paradyse
