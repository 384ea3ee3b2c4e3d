// Items with what they show.
#pragma once

#include <variant>
#include <vector>

#include "paradyse/run/data.h"
#include "paradyse/run/detail/item.h"

namespace paradyse {

// A document that was read, or a sample that was drawn.
using OwnedItem = std::variant<Document, Sample>;

// Of each; all of them live longer.
inline std::vector<Item> items_of(const std::vector<OwnedItem>& owned) {
  std::vector<Item> items;
  for (const OwnedItem& one : owned) {
    items.push_back(std::visit([](const auto& shown) { return Item(shown); }, one));
  }
  return items;
}

}  // namespace paradyse
