#include "src/run/train/background_work.h"

#include <stdexcept>
#include <system_error>
#include <utility>

#include "src/run/train/behind_training.h"

namespace paradyse {

BackgroundWork::~BackgroundWork() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void BackgroundWork::start(std::function<void()> work) {
  if (thread_.joinable()) {
    throw std::logic_error("the work before is not finished");
  }
  under_way_ = true;  // there is no other thread yet
  const auto body = [this, work = std::move(work)] {
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    under_way_ = false;
  };
  try {
    thread_ = std::thread([body] {
      run_behind_training(Behind::late);
      body();
    });
  } catch (const std::system_error&) {  // the system has no more threads
    body();
  }
}

bool BackgroundWork::done() {
  const std::lock_guard lock(mutex_);
  return !under_way_;
}

void BackgroundWork::finish() {
  if (thread_.joinable()) {
    thread_.join();
  }
  if (const std::exception_ptr error = std::exchange(error_, nullptr)) {
    std::rethrow_exception(error);
  }
}

}  // namespace paradyse
