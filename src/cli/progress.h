// The progress bar of a run: one line that is redrawn on a terminal, a line now and then elsewhere.
#pragma once

#include <string>

#include "paradyse/run/train.h"

namespace paradyse::cli {

class Progress {
 public:
  Progress();
  void show(const StepReport& report);
  void show(const ProfileProgress& now);
  void show(std::int64_t done, std::int64_t of, const std::string& what);
  void finish();  // leaves the last line standing

 private:
  void draw(std::int64_t done_of, std::int64_t all, const std::string& facts);

  bool terminal_;
  bool open_ = false;
  double tokens_per_s_ = 0;  // smoothed
};

// "[##########..........]": full when `done` is `of`, and not before.
std::string bar(std::int64_t done, std::int64_t of);

// "UlyssesZ+gather x2, DataZ+gather x1"
std::string strategies_text(const StepReport& report);

}  // namespace paradyse::cli
