#include "src/run/execute/gather.h"

#include <algorithm>

#include "paradyse/plan/detail/transfer.h"
#include "paradyse/run/accountant.h"

namespace paradyse {

std::vector<std::vector<std::int64_t>> gather(
    const std::vector<std::int64_t>& mine, Communicator& world) {
  // A sum of what is zero but on one rank is a gather; its scratch must be nobody's, too.
  Accountant nobody;
  const MemoryScope scope(nobody, Category::communication, "gather");
  const auto length = static_cast<std::int64_t>(mine.size());
  const at::Tensor all = at::zeros({world.size(), length}, at::kLong);
  auto* data = all.mutable_data_ptr<std::int64_t>();
  std::copy(mine.begin(), mine.end(), data + world.rank() * length);
  world.all_reduce(all, {.op = "gather", .part = ""});
  std::vector<std::vector<std::int64_t>> numbers;
  for (int r = 0; r < world.size(); ++r) {
    numbers.emplace_back(data + r * length, data + (r + 1) * length);
  }
  return numbers;
}

bool on_any_rank(bool mine, Communicator& world) {
  return std::ranges::any_of(
      gather({mine ? 1 : 0}, world), [](const auto& of_rank) { return of_rank[0] != 0; });
}

std::vector<std::string> gather_texts(const std::string& mine, Communicator& world) {
  const auto lengths = gather({static_cast<std::int64_t>(mine.size())}, world);
  Cuts pieces;
  std::int64_t total = 0;
  for (const auto& length : lengths) {
    pieces.emplace_back();
    if (length[0] > 0) {
      pieces.back().push_back({total, total + length[0]});
    }
    total += length[0];
  }
  std::vector<std::string> texts;
  if (total == 0) {
    return texts;
  }
  Cuts to_first(pieces.size());
  to_first[0] = {{0, total}};
  const Layout cut = matrix("bytes", {total, 1}, pieces);
  const Transfer table = transfer(cut, cut.cut("bytes", to_first), world.size());
  Accountant nobody;
  const MemoryScope scope(nobody, Category::communication, "gather");
  const at::Tensor from = at::empty({static_cast<std::int64_t>(mine.size()), 1}, at::kByte);
  std::copy(mine.begin(), mine.end(), from.mutable_data_ptr<std::uint8_t>());
  const at::Tensor to = at::empty({world.rank() == 0 ? total : 0, 1}, at::kByte);
  world.exchange(from, to, table, {.op = "gather texts", .part = ""})->wait();
  if (world.rank() == 0) {
    const auto* data = to.const_data_ptr<std::uint8_t>();
    for (const auto& piece : pieces) {
      if (!piece.empty()) {
        texts.emplace_back(data + piece[0].begin, data + piece[0].end);
      }
    }
  }
  return texts;
}

std::int64_t broadcast_number(std::int64_t mine, std::string_view op, Communicator& world) {
  const HostScope control;
  const at::Tensor number = at::full({1}, mine, at::kLong);
  world.broadcast(number, 0, {.op = op, .part = ""});
  return *number.const_data_ptr<std::int64_t>();
}

std::string broadcast_text(const std::string& mine, std::string_view op, Communicator& world) {
  const std::int64_t bytes = broadcast_number(static_cast<std::int64_t>(mine.size()), op, world);
  if (bytes == 0) {
    return "";
  }
  const HostScope control;
  const at::Tensor packed = at::empty({bytes}, at::kByte);
  if (world.rank() == 0) {
    std::copy(mine.begin(), mine.end(), packed.mutable_data_ptr<std::uint8_t>());
  }
  world.broadcast(packed, 0, {.op = op, .part = ""});
  const auto* data = packed.const_data_ptr<std::uint8_t>();
  return {data, data + bytes};
}

std::string first_text(const std::string& mine, Communicator& world) {
  const auto lengths = gather({static_cast<std::int64_t>(mine.size())}, world);
  if (std::ranges::all_of(lengths, [](const auto& length) { return length[0] == 0; })) {
    return "";
  }
  const std::vector<std::string> texts = gather_texts(mine, world);
  return broadcast_text(texts.empty() ? "" : texts.front(), "what went wrong", world);
}

}  // namespace paradyse
