"""A planner that needs no model: it reads arithmetic and date questions in English itself."""
