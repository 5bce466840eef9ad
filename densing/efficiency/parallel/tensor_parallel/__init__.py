"""A small decoder split over ranks, and the schedules that hide its all-reduces: Ladder, ISO, tiles."""
