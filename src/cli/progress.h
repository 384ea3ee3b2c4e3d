// Lines to stderr for people.  How far long work is: one line that is redrawn on a terminal, a line
// now and then elsewhere. All of it goes to stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "paradyse/run/train.h"
#include "src/plan/base/progress_hook.h"

namespace paradyse::cli {

// A line, or several on a terminal that is not so wide.
void say(const std::string& line);

class Progress {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { finish(); }

  // A step of training: every tenth is also left standing.
  void show(const StepReport& report);
  void show(const ProfileProgress& now);
  void show(std::int64_t done, std::int64_t of, const std::string& what);
  // show() for requests of long work; with `quiet` none.
  ProgressHook hook(bool quiet);
  // Ends the line: steps of training leave the last one standing, all else is wiped away.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void draw(std::int64_t done, std::int64_t of, const std::string& facts);

  bool terminal_;
  bool open_ = false;
  bool keep_ = false;            // what stands when it ends
  double tokens_per_s_ = 0;      // smoothed
  std::int64_t first_done_ = 0;  // of what is counted, when it was first shown, and when
  std::int64_t of_ = -1;
  Clock::time_point began_;
};

// Says on a terminal what is waited for and since when, after two seconds of it; wiped away when it
// ends.  For work that cannot say how far it is.
class Waiting {
 public:
  explicit Waiting(const std::string& what, bool quiet = false);
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting();

 private:
  struct Clock;
  std::unique_ptr<Clock> clock_;
};

// "[##########..........]": full when `done` is `of`, and not before.
std::string bar(std::int64_t done, std::int64_t of);

// "45 s", "12 min", "3.4 h"
std::string duration_text(double seconds);

// "UlyssesZ+gather x2, DataZ+gather x1"
std::string strategies_text(const StepReport& report);

}  // namespace paradyse::cli
