package main

import "context"

// setter lets a room that has Set still stand where a Mailbox is wanted.
type setter[W any] struct {
	room interface {
		Set(ctx context.Context, want []W) ([]W, error)
	}
}

func (s setter[W]) Put(want []W) { s.room.Set(context.Background(), want) }
