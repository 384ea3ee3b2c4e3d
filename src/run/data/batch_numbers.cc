#include "src/run/data/batch_numbers.h"

#include <algorithm>
#include <cstring>

#include "paradyse/run/accountant.h"

namespace paradyse {

at::Tensor BatchNumbers::of(
    const Key& key, const std::function<std::vector<std::int64_t>()>& make) {
  const auto found = lists_.find(key);
  if (found != lists_.end()) {
    return found->second;
  }
  const HostScope library_memory;
  std::vector<std::int64_t> numbers = make();
  at::Tensor list;
  if (device_.is_cpu()) {
    std::vector<std::int64_t>& kept = on_host_.emplace_back(std::move(numbers));
    list = at::from_blob(kept.data(), {static_cast<std::int64_t>(kept.size())}, at::kLong);
  } else {
    list = sent(numbers);
  }
  return lists_.emplace(key, list).first->second;
}

at::Tensor BatchNumbers::narrow(const std::vector<std::int64_t>& list) {
  const at::Tensor pairs = of({Kind::lengths, list}, [&] {
    std::vector<std::int64_t> both((list.size() + 1) / 2);
    const std::vector<std::int32_t> halves(list.begin(), list.end());
    std::memcpy(both.data(), halves.data(), halves.size() * sizeof(std::int32_t));
    return both;
  });
  return pairs.view(at::kInt).narrow(0, 0, static_cast<std::int64_t>(list.size()));
}

at::Tensor BatchNumbers::sent(const std::vector<std::int64_t>& numbers) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  if (!pinned_.defined() || pinned_.size(0) < count) {
    room_ = std::max(room_, count);
    pinned_ = at::empty({room_}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
  }
  const at::Tensor mine = pinned_.narrow(0, 0, count);
  pinned_ = pinned_.narrow(0, count, pinned_.size(0) - count);
  std::copy(numbers.begin(), numbers.end(), mine.mutable_data_ptr<std::int64_t>());
  return mine.to(device_, at::kLong, /*non_blocking=*/true);
}

}  // namespace paradyse
