package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// tableNames is the names of Herald's tables.
var tableNames = []string{formerOwners.table, translations.table, balanced.table, openPorts.table, invalid.table,
	egress.table}

// Traces describes Herald's tables that are there. It is an error if nftables can't be asked.
func Traces() (found []string, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	for _, f := range families {
		tables, err := c.ListTablesOfFamily(f.id)
		if err != nil {
			return found, fmt.Errorf("nftables tables of the family %s: %w", f.name, err)
		}
		for _, t := range tables {
			if slices.Contains(tableNames, t.Name) {
				found = append(found, "nftables table "+f.name+" "+t.Name)
			}
		}
	}
	return found, nil
}

// RemoveTraces removes Herald's tables, if they are there. Nobody may use Tables meanwhile.
func RemoveTraces() error {
	var errs []error
	for _, f := range families {
		c, err := nftables.New()
		if err == nil {
			for _, name := range tableNames {
				c.AddTable(f.table(name)) // one that is not there can't be deleted
				c.DelTable(f.table(name))
			}
			err = c.Flush()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("nftables tables of the family %s: %w", f.name, err))
		}
	}
	return errors.Join(errs...)
}
