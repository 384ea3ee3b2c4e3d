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
    if (const auto* const document = std::get_if<Document>(&one)) {
      const auto& [tokens, labels] = *document;
      items.emplace_back(tokens, labels ? TokenView(*labels) : TokenView());
    } else {
      items.emplace_back(std::get<Sample>(one));
    }
  }
  return items;
}

}  // namespace paradyse
